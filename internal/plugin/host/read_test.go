package host

import (
	"encoding/binary"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/core/quant"
	"github.com/gopccl/gopccl/core/topo"
	"github.com/gopccl/gopccl/plugins/proto"
)

// What a plugin says is refused, or is a solution that verifies.
func FuzzRead(f *testing.F) {
	f.Add([]byte{0, 1, 2, 3}, 0.5, 10.0, true)
	f.Add([]byte{3, 1, 0, 2}, math.NaN(), 0.0, false)
	f.Add([]byte{}, 1.0, math.Inf(1), true)
	p := topo.Problem{Matrix: topo.NewMatrix(4)}
	for i := range p.Matrix.Mbps {
		p.Matrix.Mbps[i] = float64(i)
	}
	f.Fuzz(func(t *testing.T, ring []byte, sum, bottleneck float64, optimal bool) {
		m := &proto.Solution{SumLowerBound: sum, BottleneckBound: bottleneck, Optimal: optimal}
		for len(ring) > 0 {
			v, n := binary.Uvarint(ring)
			if n <= 0 {
				return
			}
			m.Ring, ring = append(m.Ring, uint32(v)), ring[n:]
		}
		for _, o := range []topo.Objective{topo.BottleneckThenSum, topo.Sum} {
			p.Objective = o
			s, err := read(p, m)
			if err == nil && len(s.Ring) > 0 {
				require.NoError(t, p.Verify(s))
			} else if err == nil {
				require.False(t, s.Optimal)
			}
		}
	})
}

func TestReadTable(t *testing.T) {
	good := func() *proto.QuantizerDescription {
		return &proto.QuantizerDescription{Metadata: "minmax", Combinations: []*proto.Combination{{DataType: "float32", WireType: "uint8", Op: "sum", MinChunk: 2}}}
	}
	table, err := readTable(good())
	require.NoError(t, err)
	require.Len(t, table.list, 1)
	own := func() *proto.QuantizerDescription {
		d := good()
		d.Metadata, d.OwnKind, d.OwnSize = "own", 200, 8
		d.Combinations[0].WireType, d.Combinations[0].GroupElements, d.Combinations[0].GroupBytes = "int4", 32, 18
		return d
	}
	table, err = readTable(own())
	require.NoError(t, err)
	require.Equal(t, quant.Kind(200), table.kind)
	require.Equal(t, uint8(8), table.size)
	require.Equal(t, quant.Form{Elements: 32, Bytes: 18, Kind: 200}, table.list[0].form)
	for name, spoil := range map[string]func(*proto.QuantizerDescription){
		"PCCL's kind":    func(d *proto.QuantizerDescription) { d.OwnKind = 1 },
		"large kind":     func(d *proto.QuantizerDescription) { d.OwnKind = 256 },
		"large metadata": func(d *proto.QuantizerDescription) { d.OwnSize = 65 },
		"no group":       func(d *proto.QuantizerDescription) { d.Combinations[0].GroupElements = 0 },
		"odd group":      func(d *proto.QuantizerDescription) { d.Combinations[0].GroupElements = 31 },
		"empty group":    func(d *proto.QuantizerDescription) { d.Combinations[0].GroupBytes = 0 },
		"large group":    func(d *proto.QuantizerDescription) { d.Combinations[0].GroupBytes = 1 << 31 },
		"long group":     func(d *proto.QuantizerDescription) { d.Combinations[0].GroupElements = 4096 },
	} {
		d := own()
		spoil(d)
		_, err := readTable(d)
		require.Error(t, err, name)
	}
	for name, spoil := range map[string]func(*proto.QuantizerDescription){
		"no metadata":  func(d *proto.QuantizerDescription) { d.Metadata = "" },
		"no list":      func(d *proto.QuantizerDescription) { d.Combinations = nil },
		"no type":      func(d *proto.QuantizerDescription) { d.Combinations[0].DataType = "float17" },
		"no wire type": func(d *proto.QuantizerDescription) { d.Combinations[0].WireType = "" },
		"no op":        func(d *proto.QuantizerDescription) { d.Combinations[0].Op = "median" },
		"integers":     func(d *proto.QuantizerDescription) { d.Combinations[0].DataType = "int32" },
		"floats":       func(d *proto.QuantizerDescription) { d.Combinations[0].WireType = "float16" },
		"empty chunks": func(d *proto.QuantizerDescription) { d.Combinations[0].MinChunk = 0 },
	} {
		d := good()
		spoil(d)
		_, err := readTable(d)
		require.Error(t, err, name)
	}
}
