package topofile

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
)

// peer is an object with a name, or just the name.
type peer string

func (p *peer) UnmarshalJSON(b []byte) error {
	var name string
	if json.Unmarshal(b, &name) == nil {
		*p = peer(name)
		return nil
	}
	var o struct{ Name string }
	if err := json.Unmarshal(b, &o); err != nil || o.Name == "" {
		return errors.New("a peer is a name, or an object with a name")
	}
	*p = peer(o.Name)
	return nil
}

// cut makes the end of a file that was cut off readable.
func cut(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return errors.New("the file ends too early: it was cut off")
	}
	return err
}

func parseJSON(text []byte) (*File, error) {
	var in struct {
		Name  string
		N     *int
		Peers []peer
		Mbps  [][]*float64
	}
	d := json.NewDecoder(bytes.NewReader(text))
	target := any(&in)
	if text[0] == '[' {
		target = &in.Mbps
	}
	if err := d.Decode(target); err != nil {
		var at *json.SyntaxError
		if errors.As(err, &at) {
			return nil, fmt.Errorf("not JSON at byte %d: %w", at.Offset, err)
		}
		return nil, cut(err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("unexpected data after the matrix at byte %d", d.InputOffset())
	}
	if in.N != nil && *in.N != len(in.Mbps) {
		return nil, fmt.Errorf(`"n" is %d, but "mbps" has %d rows`, *in.N, len(in.Mbps))
	}
	rows := make([][]float64, len(in.Mbps))
	for i, row := range in.Mbps {
		rows[i] = make([]float64, len(row))
		for j, v := range row {
			if rows[i][j] = math.NaN(); v != nil {
				rows[i][j] = *v
			}
		}
	}
	m, err := square(rows)
	if err != nil {
		return nil, err
	}
	f := &File{Name: in.Name, Matrix: m}
	for _, p := range in.Peers {
		f.Peers = append(f.Peers, string(p))
	}
	return f, nil
}
