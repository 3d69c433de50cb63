// Package stats holds the counters of the data path. They are updated with
// atomics and read as one snapshot, in which counters may differ by what
// happened while it was taken.
package stats

import "sync/atomic"

// Data counts what an engine did since it was made.
type Data struct {
	TxBytes, RxBytes   atomic.Uint64
	TxFrames, RxFrames atomic.Uint64
	Writes             atomic.Uint64
	InlineWrites       atomic.Uint64
	Copied             atomic.Uint64
	StaleFrames        atomic.Uint64
	StaleBytes         atomic.Uint64
	PaddedBytes        atomic.Uint64
	Spared             atomic.Uint64
	Openers            atomic.Uint64
	Ops, FailedOps     atomic.Uint64
	ConnsLost          atomic.Uint64
}

// DataSnapshot is Data at one moment.
type DataSnapshot struct {
	TxBytes      uint64 // payload bytes handed to the kernel (tensor data and metadata)
	RxBytes      uint64 // payload bytes consumed by operations
	TxFrames     uint64 // frames handed to the kernel
	RxFrames     uint64 // frames consumed by operations
	Writes       uint64 // write calls
	InlineWrites uint64 // of these, made by a reader without waking the sender
	Copied       uint64 // tensor bytes copied in user space before sending (small frames gathered into one write)
	StaleFrames  uint64 // frames of ended operations and openers that were dropped
	StaleBytes   uint64 // their payload
	PaddedBytes  uint64 // zeros that completed frames of aborted operations
	Spared       uint64 // pieces that were made of a spare one, and not waited for
	Openers      uint64 // opener frames sent (quirk Q23)
	Ops          uint64 // operations started
	FailedOps    uint64 // of these, failed or aborted
	ConnsLost    uint64 // connections that broke
}

// Snapshot returns the present values.
func (d *Data) Snapshot() DataSnapshot {
	return DataSnapshot{
		TxBytes: d.TxBytes.Load(), RxBytes: d.RxBytes.Load(),
		TxFrames: d.TxFrames.Load(), RxFrames: d.RxFrames.Load(),
		Writes: d.Writes.Load(), InlineWrites: d.InlineWrites.Load(), Copied: d.Copied.Load(),
		StaleFrames: d.StaleFrames.Load(), StaleBytes: d.StaleBytes.Load(),
		PaddedBytes: d.PaddedBytes.Load(), Spared: d.Spared.Load(), Openers: d.Openers.Load(),
		Ops: d.Ops.Load(), FailedOps: d.FailedOps.Load(), ConnsLost: d.ConnsLost.Load(),
	}
}
