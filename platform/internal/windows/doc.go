// Package windows holds what the module asks of Windows beyond the standard
// library. Only package platform imports it.
package windows
