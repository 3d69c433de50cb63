//go:build !race

package tlsconn_test

// slack is what a call may allocate above crypto/tls.
const slack = 0
