// Package fenced gives tests memory that ends where the process may not read: a
// kernel that touches a byte before or behind its operands crashes the test.
package fenced

import "testing"

// Memory returns n bytes or more, a whole number of pages, between two pages that
// must not be touched, until the test ends. The content is zero. Systems without
// mmap have ordinary memory, where nothing is found.
func Memory(t testing.TB, n int) []byte {
	t.Helper()
	m, free, err := reserve(n)
	if err != nil {
		t.Fatalf("fenced memory of %d bytes: %v", n, err)
	}
	t.Cleanup(func() {
		if err := free(); err != nil {
			t.Errorf("free fenced memory: %v", err)
		}
	})
	return m
}
