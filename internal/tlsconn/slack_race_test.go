//go:build race

package tlsconn_test

// slack is for the calls of the system's package, which the race detector wants.
const slack = 8
