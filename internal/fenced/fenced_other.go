//go:build !unix

package fenced

import "os"

func reserve(n int) (m []byte, free func() error, err error) {
	page := os.Getpagesize()
	return make([]byte, max(1, (n+page-1)/page)*page), func() error { return nil }, nil
}
