package backendtest

import (
	_ "embed"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/gopccl/gopccl/core/backend"
	"github.com/gopccl/gopccl/core/dtype"
)

//go:embed testdata/reduce_ops.json
var reduceOps []byte

// hexBytes is a byte string in hex.
type hexBytes []byte

func (h *hexBytes) UnmarshalText(s []byte) error {
	*h = make([]byte, hex.DecodedLen(len(s)))
	_, err := hex.Decode(*h, s)
	return err
}

// checkVectors replays what PCCL 1.0.0 computed (data spec, section 3). NaN
// patterns count, except where arithmetic made them.
func checkVectors(b backend.Backend) error {
	var file struct {
		Vectors []struct {
			DataType dtype.Type `json:"data_type"`
			Op       dtype.Op   `json:"op"`
			N        int        `json:"n"`
			Local    hexBytes   `json:"local"`
			Received hexBytes   `json:"received"`
			Result   hexBytes   `json:"result"`
			Avg2     hexBytes   `json:"avg_world_2"`
			Avg3     hexBytes   `json:"avg_world_3"`
			Avg7     hexBytes   `json:"avg_world_7"`
		} `json:"vectors"`
	}
	if err := json.Unmarshal(reduceOps, &file); err != nil {
		return err
	}
	worlds := 0
	for _, v := range file.Vectors {
		where := fmt.Sprintf("vector %v %v", v.DataType, v.Op)
		if len(v.Local) != v.N*v.DataType.Size() || len(v.Result) != len(v.Local) {
			return fmt.Errorf("%s: damaged", where)
		}
		if v.Op == dtype.Set { // all-gather is a copy and no business of backends
			continue
		}
		dst := make([]byte, len(v.Local))
		b.Reduce(v.DataType, v.Op, dst, v.Local, v.Received)
		exact := v.Op == dtype.Max || v.Op == dtype.Min
		if err := compare(v.DataType, exact, dst, v.Result); err != nil {
			return fmt.Errorf("%s: %w", where, err)
		}
		for world, want := range map[int][]byte{2: v.Avg2, 3: v.Avg3, 7: v.Avg7} {
			if want == nil {
				continue
			}
			worlds++
			avg := slices.Clone(dst)
			b.Finalize(v.DataType, avg, world)
			if err := compare(v.DataType, false, avg, want); err != nil {
				return fmt.Errorf("%s, world %d: %w", where, world, err)
			}
		}
	}
	if len(file.Vectors) != 60 || worlds != 30 {
		return errors.New("vectors are missing")
	}
	return nil
}
