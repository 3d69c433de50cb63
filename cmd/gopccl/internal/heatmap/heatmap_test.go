package heatmap

import (
	"encoding/xml"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/core/topo"
)

func picture() Picture {
	m := topo.NewMatrix(3)
	copy(m.Mbps, []float64{0, 10, 1000, 100, 0, 10, 10, 0, 0})
	return Picture{Title: "three", Names: []string{"a<b", "b", "a name that is too long"}, Matrix: m, Ring: []int{1, 2, 0}}
}

func TestTerminal(t *testing.T) {
	var b strings.Builder
	require.NoError(t, picture().Terminal(&b, false))
	require.Equal(t, `three
                    0 1 2
a<b               0 \>0 9
b                 1 5 \>0
a name that is …  2>0 . \
from 10 Mbit/s to 1 Gbit/s; links of the ring are marked
ring of 3, slowest link 10 Mbit/s (b to a name that is too long)
b > a name that is too long > a<b
`, b.String())
	b.Reset()
	require.NoError(t, picture().Terminal(&b, true))
	require.Equal(t, 3, strings.Count(b.String(), "<>"))
	b.Reset()
	require.NoError(t, Picture{Title: "none"}.Terminal(&b, false))
	require.Contains(t, b.String(), "no ring")
	p := picture()
	p.Ring = nil
	require.NoError(t, p.Terminal(&b, false))
}

// The image is well formed and shows every link and the ring.
func TestSVG(t *testing.T) {
	for _, p := range []Picture{picture(), {Title: "nothing"}} {
		var b strings.Builder
		require.NoError(t, p.SVG(&b))
		d := xml.NewDecoder(strings.NewReader(b.String()))
		for {
			_, err := d.Token()
			if errors.Is(err, io.EOF) {
				break
			}
			require.NoError(t, err)
		}
		require.Equal(t, len(p.Ring), strings.Count(b.String(), "<line "))
	}
	var b strings.Builder
	require.NoError(t, picture().SVG(&b))
	require.Equal(t, 3+1, strings.Count(b.String(), `stroke="#e4002b"`), "the ring's cells and its slowest link")
	require.Contains(t, b.String(), "a&lt;b to b: 10 Mbit/s")
}

func TestColors(t *testing.T) {
	r, g, b := color(0)
	require.Equal(t, [3]int{68, 1, 84}, [3]int{r, g, b})
	r, g, b = color(2)
	require.Equal(t, [3]int{253, 231, 37}, [3]int{r, g, b})
	require.Equal(t, 1.0, scale{5, 5}.at(5))
}
