package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/gopccl/gopccl/cmd/gopccl/internal/heatmap"
	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/core/topo"
	"github.com/gopccl/gopccl/core/topo/topofile"
)

func newTopologyShowCmd() *cobra.Command {
	var svg, ring string
	var asked bool
	cmd := &cobra.Command{
		Use:   "show [FILE]",
		Short: "Draw the bandwidths as a heat map, and the ring on it",
		Long: `Draw the bandwidths between peers as a heat map, with the ring drawn on it, on
the terminal and with --svg as an image.

FILE is what "gopccl topology measure" writes, or any file that "solve" reads.
Without it the master is asked (peer.master of the configuration). The ring is
that of --ring, else the one in the file or at the master, else the best one that
the solver finds in a second.`,
		Example: `  gopccl topology show --master 10.0.0.1:48148
  gopccl topology show run.json --svg run.svg
  gopccl topology show run.json --ring none`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := loadConfig(cmd)
			if err != nil {
				return err
			}
			var p heatmap.Picture
			if len(args) == 1 {
				p, err = readPicture(args[0])
			} else {
				var m measured
				if m, err = askMaster(cmd.Context(), c); err == nil {
					p, err = m.picture()
				}
			}
			if err != nil {
				return err
			}
			if p.Ring, err = chooseRing(cmd.Context(), p, ring); err != nil {
				return err
			}
			if svg != "" {
				f, err := os.Create(svg)
				if err != nil {
					return err
				}
				if err := errors.Join(p.SVG(f), f.Close()); err != nil {
					return err
				}
			}
			return p.Terminal(cmd.OutOrStdout(), terminal(cmd.OutOrStdout()) && !asked)
		},
	}
	fl := cmd.Flags()
	fl.String("master", "", "`HOST:PORT` of the master (default 127.0.0.1:48148)")
	peerFlags(cmd)
	fl.StringVar(&svg, "svg", "", "`FILE` to write the image to")
	fl.StringVar(&ring, "ring", "", "positions of the peers such as 0,2,1; solve to search for one, none for none")
	fl.BoolVar(&asked, "plain", false, "digits instead of colours, as where the output is not a terminal")
	return cmd
}

// readPicture reads a matrix, and the ring if the file has one.
func readPicture(path string) (p heatmap.Picture, err error) {
	f, err := topofile.Open(path)
	if err != nil {
		return p, err
	}
	p = heatmap.Picture{Title: f.Name, Names: f.Peers, Matrix: f.Matrix}
	var more struct{ Ring []int }
	if raw, err := os.ReadFile(path); err == nil && json.Unmarshal(raw, &more) == nil && len(more.Ring) > 0 {
		if p.Ring, err = checkRing(more.Ring, p); err != nil {
			return p, errs.New(errs.CorruptFile, "show topology", fmt.Errorf("%s: %w", path, err))
		}
	}
	return p, nil
}

func (m measured) picture() (heatmap.Picture, error) {
	p := heatmap.Picture{Title: m.Name, Matrix: topo.NewMatrix(m.N), Ring: m.Ring}
	for i, row := range m.Mbps {
		p.Names = append(p.Names, m.Peers[i].Name)
		for j, v := range row {
			if v != nil {
				p.Matrix.Set(i, j, *v)
			}
		}
	}
	if _, err := checkRing(p.Ring, p); len(p.Ring) > 0 && err != nil {
		return p, errs.New(errs.Protocol, "show topology", err)
	}
	return p, nil
}

// checkRing wants every peer once; the links may be unknown.
func checkRing(ring []int, p heatmap.Picture) ([]int, error) {
	seen := make([]bool, p.Matrix.N)
	for _, i := range ring {
		if i < 0 || i >= len(seen) || seen[i] {
			return nil, fmt.Errorf("a ring holds every peer once: %d", i)
		}
		seen[i] = true
	}
	if len(ring) != len(seen) {
		return nil, fmt.Errorf("the ring has %d of %d peers", len(ring), len(seen))
	}
	return ring, nil
}

func chooseRing(ctx context.Context, p heatmap.Picture, ring string) ([]int, error) {
	switch {
	case ring == "none":
		return nil, nil
	case ring == "" && p.Ring != nil:
		return p.Ring, nil
	case ring != "" && ring != "solve":
		var out []int
		for _, s := range strings.Split(ring, ",") {
			i, err := strconv.Atoi(strings.TrimSpace(s))
			if err != nil {
				return nil, errs.New(errs.InvalidConfig, "show topology", fmt.Errorf("--ring %q: want positions such as 0,2,1", ring))
			}
			out = append(out, i)
		}
		out, err := checkRing(out, p)
		if err != nil {
			return nil, errs.New(errs.InvalidConfig, "show topology", fmt.Errorf("--ring: %w", err))
		}
		return out, nil
	}
	if p.Matrix.N < 2 {
		return nil, nil
	}
	s, err := topo.Lookup("auto")
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	sol, err := s.Solve(ctx, topo.Problem{Matrix: p.Matrix}, func(topo.Solution) {})
	if errors.Is(err, topo.ErrNoRing) {
		return nil, nil // the picture shows why
	}
	return sol.Ring, err
}
