// Command c is the C library: the interface of PCCL 1.0.0 (pccl.h) on gopccl.
//
//	go build -buildmode=c-shared -o libpccl.so ./bindings/c
//
// build.sh does the same and exports nothing but the interface. The functions
// that C sees are in abi.c; they hand handles to Go as numbers. Every Go
// function behind them returns a result, also after a panic.
package main

func main() {}
