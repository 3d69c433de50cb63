// Package linux holds what the module asks of Linux beyond the standard
// library. Only package platform imports it.
package linux
