// Package unix holds what Linux and macOS have in common. Only package platform
// imports it.
package unix
