// Package ptxtest is a CUDA driver without a GPU: it executes the PTX of a
// module in Go, so that a backend's whole path, from the pointer to the
// result, can be tested on every machine. It is for tests, and slow.
//
// What is modelled: PTX of [module]s that target sm_52 or a later device, with
// integer, .f32 and .f64 arithmetic to the last bit (see below), predicates,
// divergence, barriers, shuffles, votes, shared, constant and local memory,
// atomics, functions (but no recursion), branch tables. What is not: textures
// and surfaces, half precision arithmetic other than conversions, tensor
// instructions, clusters, dynamic parallelism. An instruction that the
// interpreter does not know fails ModuleLoad with its line.
//
// Bits. Rounding, subnormals (with and without .ftz), conversions and the
// order of zeros in min and max follow the PTX manual. NaNs of .f32 arithmetic
// are 0x7fffffff. Others the manual leaves open, and [Options].OtherNaNs chooses
// differently: .f64 arithmetic makes the first operand's, quieted, or, of
// numbers, 0xfff8000000000000 (other: always 0x7fffffffffffffff); neg and abs
// change the sign of a NaN (other: make a positive one with all bits set);
// conversions between .f16 and wider types make 0x7fff and 0x7fffffff (other:
// keep sign and payload). Kernels should not depend on the choice. Division by zero of integers
// gives all ones. The approximations (ex2.approx and its like) are computed in
// double precision and rounded once: no GPU's bits. rcp.approx, div.approx,
// div.full and sqrt.approx are exact here.
//
// Mistakes that a device forgives now and then are failures here. Each
// allocation has addresses of its own with gaps around it, never given out
// again, so an access outside of one fails the launch with IllegalAddress, and
// one that is not aligned with MisalignedAddress; the context is lost then, as
// on a device. Memory that was never written holds 0xa5…, registers hold that
// or what another thread left there. Warps of a block, and blocks, are
// interleaved in an order that depends on [Options].Seed; what is queued on
// streams runs late, in a random order, and only while somebody waits for it, so
// a missing dependency shows as a wrong result. It also shows as a failure: work
// of two streams that uses the same bytes, and of which one writes, has to be
// ordered by an event or by somebody who waited in between; and two warps that
// use a byte of shared memory between the same barriers have to read both, or be
// atomic or volatile both. A kernel whose warps execute more than
// [Options].Steps instructions ends with LaunchTimeout. One block runs at a
// time, so a block cannot wait for another one.
//
// A [Device] counts what it gave out and did not get back, and fails calls on
// demand.
//
// # Where things are
//
// A text becomes a module in lex.go and parse.go; module.go has its parts and
// types.go the types of PTX. decode.go and link.go turn each function into
// instructions with resolved operands, once. integer.go, float.go and convert.go
// have what instructions compute in one lane, exec.go and warp.go what a warp
// makes of it, access.go its loads, stores and atomics, and block.go the
// barriers and the order of warps. device.go, memory.go, stream.go and order.go
// are the driver: allocations, queues, and which work waits for which; capture.go
// has the captures of graphs, which record what is queued and end with a call
// that conflicts with them. race.go finds accesses that nothing orders, counts.go
// counts for benchmarks.
//
// An instruction is added in three places: its form in decode.go, what it does
// in one of the files of arithmetic, and a case in instruction_test.go, which
// compares it with math/big or with plain Go on operands that include the edges.
package ptxtest
