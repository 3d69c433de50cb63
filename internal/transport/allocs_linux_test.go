//go:build !race

package transport_test

const maxAllocs = 0
