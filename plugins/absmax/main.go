// Command absmax is a quantizer plugin: symmetric integers, scaled so that the
// largest absolute value of a chunk is the largest integer.
//
//	plugins:
//	  - {name: absmax, kind: quantizer, command: absmax}
//	quantize:
//	  algorithm: absmax
//	  type: int8
package main

import "github.com/gopccl/gopccl/plugins/sdk"

func main() { sdk.ServeQuantizer(absmax{}) }
