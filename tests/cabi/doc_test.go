// Package cabi tests the C library as its users meet it: C and C++ programs are
// compiled against its headers, run, and must pass. The programs are in the
// directory programs.
package cabi
