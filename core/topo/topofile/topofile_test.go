package topofile

import (
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/core/errs"
)

const tsplib = `NAME: tiny
TYPE: ATSP
COMMENT: three
DIMENSION:  3
EDGE_WEIGHT_TYPE: EXPLICIT
EDGE_WEIGHT_FORMAT: FULL_MATRIX
EDGE_WEIGHT_SECTION
 9999 2 0
 4 9999
 5 10
 1000000000 9999
EOF
`

func TestFormats(t *testing.T) {
	for name, text := range map[string]string{
		"a.json":     `{"name": "w", "n": 3, "peers": [{"name":"x","nat":true}, "y", {"name":"z"}], "mbps": [[null,500,null],[250,null,200],[100,0,7]]}`,
		"plain.json": `[[0,500,null],[250,0,200],[100,0,0]]`,
		"a.csv":      ",x,y,z\nx,,500,\ny,250,,200\nz,100,-,",
		"semi.csv":   "x;y;z\n0;500;\n250;;200\n100;0;0\n",
		"bare.csv":   "0,500,0\n250,0,200\n100,null,0\n",
		"links.csv":  "from,to,Mbps\nx,y,500\ny,x,250\ny,z,200\nz,x,100\n",
		"noname":     "0\t500\t0\n250\t0\t200\n100\t0\t0\n",
	} {
		f, err := Read(strings.NewReader(text), name)
		require.NoError(t, err, name)
		require.Equal(t, 3, f.Matrix.N, name)
		require.False(t, f.Costs)
		require.Len(t, f.Peers, 3)
		for i, row := range [3][3]float64{{0, 500, 0}, {250, 0, 200}, {100, 0, 0}} {
			for j, want := range row {
				got, ok := f.Matrix.At(i, j)
				require.Equal(t, want > 0, ok, "%s %d %d", name, i, j)
				require.Equal(t, want, got, "%s %d %d", name, i, j)
			}
		}
		if strings.HasPrefix(name, "a.") || name == "links.csv" || name == "semi.csv" {
			require.Equal(t, []string{"x", "y", "z"}, f.Peers)
		}
	}
	f, err := Read(strings.NewReader(tsplib), "t.atsp")
	require.NoError(t, err)
	require.True(t, f.Costs)
	require.Equal(t, "tiny", f.Name)
	v, ok := f.Matrix.At(0, 1)
	require.True(t, ok)
	require.Equal(t, 500.0, v)
	v, ok = f.Matrix.At(0, 2) // costs nothing
	require.True(t, ok)
	require.Equal(t, math.MaxFloat64, v)
	require.Equal(t, 0.0, f.Bottleneck(v))
	_, ok = f.Matrix.At(2, 1)
	require.False(t, ok)
	_, sum, ok := f.Matrix.Value([]int{0, 2, 1})
	require.False(t, ok)
	require.Zero(t, sum)
	_, sum, ok = f.Matrix.Value([]int{0, 1, 2})
	require.True(t, ok)
	require.Equal(t, 2+5+10.0, f.Sum(sum)-0)
}

func TestBadFilesAreNamed(t *testing.T) {
	for text, want := range map[string]string{
		"a.json|":                                               "empty",
		"a.json|{\"mbps\": [[0, 1], [2":                         "cut off",
		"a.json|{\"mbps\": [[0, NaN], [1, 0]]}":                 "byte",
		"a.json|[[0,1],[1,0]] x":                                "after the matrix",
		"a.json|{\"n\":3,\"mbps\": [[0,1],[1,0]]}":              `"n" is 3`,
		"a.json|{}":                                             "no peers",
		"a.json|[[0,1,2],[1,0]]":                                "square",
		"a.json|[[0,-1],[1,0]]":                                 "-1 Mbit/s",
		"a.json|[[0,1e300],[1,0]]":                              "1e+300",
		"a.json|[[0,5,5],[0,0,5],[0,0,0]]":                      "one-sided",
		`a.json|{"peers":["a","a"],"mbps":[[0,1],[1,0]]}`:       `both called "a"`,
		`a.json|{"peers":["a"],"mbps":[[0,1],[1,0]]}`:           "1 names for 2",
		`a.json|{"peers":[7],"mbps":[[0,1],[1,0]]}`:             "a peer is a name",
		"a.csv|x,y\n0,1\n":                                      "its column is not",
		"a.csv|0,inf\n1,0":                                      "not a rate",
		"a.csv|0,NaN\n1,0":                                      "not a rate",
		"a.csv|,a,b\nb,0,1\na,1,0":                              "its column is not",
		"a.csv|from,to,mbps\na,b,1\na,b,2":                      "twice",
		"a.csv|from,to,mbps\na,b,1\nb,a":                        "2 cells",
		"a.csv|from,to,mbps\na,,1":                              "without a name",
		"a.csv|from,to,seconds\na,b,1":                          "want mbps",
		"a.csv|\"a":                                             "",
		"a.atsp|" + tsplib[:len(tsplib)-20]:                     "cut off",
		"a.atsp|DIMENSION: 99999999\n":                          "want 1 to",
		"a.atsp|TYPE: CVRP\n":                                   "CVRP",
		"a.atsp|DIMENSION: 1\nEDGE_WEIGHT_SECTION\n1 2\n":       "more than",
		"a.atsp|EDGE_WEIGHT_SECTION\n1\n":                       "before DIMENSION",
		"a.atsp|DIMENSION: 2\nEDGE_WEIGHT_SECTION\n0 -1\n1 0\n": "negative",
		"a.atsp|DIMENSION: 2\nEDGE_WEIGHT_SECTION\n0 1x\n1 0\n": "not a cost",
		"a.atsp|DIMENSION: 2\nEDGE_WEIGHT_FORMAT: UPPER_ROW\n":  "UPPER_ROW",
		"a.atsp|DIMENSION: 2\nEDGE_WEIGHT_TYPE: EUC_2D\n":       "EUC_2D",
		"a.atsp|DIMENSION: 2\nNODE_COORD_SECTION\n":             "not understood",
		"a.atsp|NAME: x\n":                                      "no DIMENSION",
	} {
		name, body, _ := strings.Cut(text, "|")
		f, err := Read(strings.NewReader(body), name)
		require.Nil(t, f, text)
		require.ErrorIs(t, err, errs.CorruptFile, text)
		require.ErrorContains(t, err, name)
		require.ErrorContains(t, err, want, text)
	}
	_, err := Open("does/not/exist")
	require.ErrorIs(t, err, errs.InvalidArgument)
}

// Whatever is read is a matrix that can be solved, or an error of the right
// kind; never a panic.
func FuzzRead(f *testing.F) {
	for _, ext := range []string{".json", ".atsp", ".csv", ""} {
		for _, s := range []string{tsplib, "a,b\n0,1\n1,0", "from,to,mbps\na,b,1\nb,a,2", `{"n":2,"mbps":[[0,1],[1,null]],"peers":["a","b"]}`, "[[]]"} {
			f.Add(ext, []byte(s))
		}
	}
	f.Fuzz(func(t *testing.T, ext string, data []byte) {
		got, err := Read(strings.NewReader(string(data)), "f"+ext)
		if err != nil {
			require.ErrorIs(t, err, errs.CorruptFile)
			return
		}
		m := got.Matrix
		require.Positive(t, m.N)
		require.Len(t, m.Mbps, m.N*m.N)
		require.Len(t, got.Peers, m.N)
		for i, v := range m.Mbps {
			require.False(t, v < 0 || math.IsNaN(v), fmt.Sprint(i))
		}
	})
}
