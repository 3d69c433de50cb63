//go:build unix && !race

package transport

func released() {}
