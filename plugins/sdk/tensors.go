package sdk

import (
	"context"
	"fmt"
	"io"
	"os"
	"strconv"

	"google.golang.org/grpc"

	"github.com/gopccl/gopccl/core/backend"
	"github.com/gopccl/gopccl/core/dtype"
	"github.com/gopccl/gopccl/core/quant"
	"github.com/gopccl/gopccl/internal/plugin/shm"
	"github.com/gopccl/gopccl/plugins/proto"
)

// longChunk is a chunk length that suffices for every quantizer.
const longChunk = 1024

// ServeQuantizer serves q and does not return. q is asked for chunks of at most
// 1 GiB.
func ServeQuantizer(q quant.Quantizer) {
	serveLanes(func(f *shm.Frame, dst, a, _ []byte) {
		switch f.Call {
		case shm.Params:
			f.Meta = q.Params(f.Type, f.Wire, a)
		case shm.Quantize:
			q.Quantize(f.Type, f.Wire, &f.Meta, dst, a)
		case shm.Dequantize:
			q.Dequantize(f.Type, f.Wire, &f.Meta, f.Op, dst, a)
		default:
			panic("no call of a quantizer")
		}
	})
	serve("quantizer", func(g *grpc.Server) { proto.RegisterQuantizerServer(g, quantizer{q: q}) })
}

// ServeBackend serves b and does not return. rank is that among the backends
// that "auto" chooses from, 0 is never.
func ServeBackend(b backend.Backend, rank int) {
	serveLanes(func(f *shm.Frame, dst, x, y []byte) {
		switch f.Call {
		case shm.Reduce:
			b.Reduce(f.Type, f.Op, dst, x, y)
		case shm.Finalize:
			b.Finalize(f.Type, dst, int(f.World))
		default:
			panic("no call of a backend")
		}
	})
	serve("backend", func(g *grpc.Server) { proto.RegisterBackendServer(g, reducer{rank: rank}) })
}

type quantizer struct {
	proto.UnimplementedQuantizerServer
	q quant.Quantizer
}

// Describe lists everything that the quantizer accepts between gopccl peers.
func (v quantizer) Describe(context.Context, *proto.DescribeRequest) (*proto.QuantizerDescription, error) {
	d := &proto.QuantizerDescription{}
	for t := range dtype.Type(dtype.NumTypes) {
		for w := range dtype.Int4 + 1 {
			if !w.Valid() && !w.Packed() {
				continue
			}
			for op := dtype.Sum; op < dtype.NumOps; op++ {
				if v.q.Check(t, w, op, longChunk, true) != nil {
					continue
				}
				least := 1
				for v.q.Check(t, w, op, least, true) != nil {
					least++
				}
				d.Combinations = append(d.Combinations, &proto.Combination{DataType: t.String(), WireType: w.String(), Op: op.String(), MinChunk: uint32(least)})
				if _, formed := v.q.(quant.Formed); formed {
					f, c := quant.FormOf(v.q, t, w), d.Combinations[len(d.Combinations)-1]
					c.GroupElements, c.GroupBytes = uint32(f.Elements), uint32(f.Bytes)
				}
				if d.Metadata == "" {
					d.Metadata, d.OwnKind, d.OwnSize = metadata(v.q.Params(t, w, make([]byte, longChunk*t.Size())))
				}
			}
		}
	}
	return d, nil
}

// metadata tells the host what m is an example of.
func metadata(m quant.Meta) (name string, kind, size uint32) {
	switch {
	case m.Kind >= quant.Own:
		return "own", uint32(m.Kind), uint32(m.Size)
	case m.Kind == quant.ZeroPoint:
		return "zeropoint", 0, 0
	}
	return "minmax", 0, 0
}

type reducer struct {
	proto.UnimplementedBackendServer
	rank int
}

// Describe tells the rank.
func (r reducer) Describe(context.Context, *proto.DescribeRequest) (*proto.BackendDescription, error) {
	return &proto.BackendDescription{Rank: uint32(max(0, r.rank))}, nil
}

// serveLanes answers calls on the descriptors that the host gave, if it did.
func serveLanes(do func(f *shm.Frame, dst, a, b []byte)) {
	lanes, err := strconv.Atoi(os.Getenv(shm.EnvLanes))
	if err != nil || lanes <= 0 {
		return // started by hand: serve says so
	}
	area, err := strconv.Atoi(os.Getenv(shm.EnvArea))
	var m *shm.Memory
	if err == nil {
		m, err = shm.Map(shm.Inherited(shm.FirstFile), lanes*area)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "the host's memory cannot be used:", err)
		os.Exit(1)
	}
	for i := range lanes {
		go lane(shm.Inherited(shm.FirstFile+1+i), m.Bytes[i*area:(i+1)*area:(i+1)*area], do)
	}
}

// lane answers the calls of one lane, whose offsets count from its area's start.
func lane(socket io.ReadWriter, mem []byte, do func(f *shm.Frame, dst, a, b []byte)) {
	var frame shm.Frame
	b := make([]byte, shm.FrameBytes)
	for {
		if _, err := io.ReadFull(socket, b); err != nil {
			return
		}
		if err := frame.Get(b); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		answer(&frame, mem, do)
		frame.Put(b)
		if _, err := socket.Write(b); err != nil {
			return
		}
	}
}

func answer(f *shm.Frame, mem []byte, do func(f *shm.Frame, dst, a, b []byte)) {
	f.Failed = false
	defer func() {
		if r := recover(); r != nil {
			f.Failed = true
			copy(f.Text[:], fmt.Sprint(r))
		}
	}()
	dst, x, y, err := f.Slices(mem)
	if err != nil {
		panic(err)
	}
	do(f, dst, x, y)
}
