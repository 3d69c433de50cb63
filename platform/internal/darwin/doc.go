// Package darwin holds what the module asks of macOS beyond the standard
// library. Only package platform imports it.
package darwin
