// Command asyncdiloco trains the charlm model on Newton's "Opticks" with any number of
// peers: DiLoCo whose averages travel while the next step is computed.
//
// Start a master and at least two peers, in any order; more may join or leave
// at any time:
//
//	gopccl master --listen 127.0.0.1:48148
//	go run ./examples/asyncdiloco -master 127.0.0.1:48148 -checkpoint /var/lib/run/peer1
//	go run ./examples/asyncdiloco -master 127.0.0.1:48148 -checkpoint /var/lib/run/peer2
//
// The trainer itself is trainers.AsyncDiLoCo.
package main

import "github.com/gopccl/gopccl/examples/trainers"

func main() {
	o := trainers.DefaultOptions()
	trainers.Main("asyncdiloco", trainers.AsyncDiLoCo, o)
}
