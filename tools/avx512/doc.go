// Command avx512 is both ends of tools/ci/avx512.sh: called with names of
// files it writes an initial file system for Linux that holds itself as the
// first process and a test program; as the first process it runs the test
// program on the levels with AVX-512, prints the result and turns the machine off.
package main
