package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/gopccl/gopccl/conf"
	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/core/secure"
	"github.com/gopccl/gopccl/core/topo"
	"github.com/gopccl/gopccl/internal/enroll"
	"github.com/gopccl/gopccl/internal/guard"
	"github.com/gopccl/gopccl/internal/probe"
	"github.com/gopccl/gopccl/internal/transport"
	"github.com/gopccl/gopccl/internal/wire"
)

// measured is the file that measure writes and show reads; solve reads it, too.
type measured struct {
	Name  string       `json:"name"`
	N     int          `json:"n"`
	Peers []namedPeer  `json:"peers"`
	Mbps  [][]*float64 `json:"mbps"`
	Ring  []int        `json:"ring,omitempty"`
	whole bool         // where no rate is, there is no link
}

type namedPeer struct {
	Name string `json:"name"`
	UUID string `json:"uuid"`
}

func newMeasured(master string, g wire.GroupTopology) (m measured, err error) {
	n := len(g.Peers)
	if len(g.Mbps) != n*n {
		return m, errs.New(errs.Protocol, "measure topology", fmt.Errorf("the master sent %d rates for %d peers", len(g.Mbps), n))
	}
	m = measured{Name: fmt.Sprintf("group %d at %s", g.Group, master), N: n}
	x := topo.Matrix{N: n, Mbps: g.Mbps}
	for i, p := range g.Peers {
		m.Peers = append(m.Peers, namedPeer{fmt.Sprintf("%s-%s", p.Addr.Addr(), p.UUID.Short()), p.UUID.String()})
		row := make([]*float64, n)
		for j := range n {
			if v, ok := x.At(i, j); ok {
				row[j] = &v
			}
		}
		m.Mbps = append(m.Mbps, row)
	}
	for _, i := range g.Ring {
		if int(i) >= n {
			return m, errs.New(errs.Protocol, "measure topology", fmt.Errorf("the master sent a ring with peer %d of %d", i, n))
		}
		m.Ring = append(m.Ring, int(i))
	}
	return m, nil
}

// askMaster asks a running master for what it knows of the links of a group: the first
// that answers.
func askMaster(ctx context.Context, cfg *conf.Config) (m measured, err error) {
	for master := range strings.SplitSeq(cfg.Peer.Master, ",") {
		m, err = askThis(ctx, cfg, strings.TrimSpace(master))
		if errs.CodeOf(err) != errs.MasterConnectionFailed {
			break
		}
	}
	return m, err
}

func askThis(ctx context.Context, cfg *conf.Config, master string) (m measured, err error) {
	t, err := askTopology(ctx, cfg, master)
	if err != nil {
		return m, err
	}
	for _, g := range t.Groups {
		if g.Group == cfg.Peer.Group {
			return newMeasured(master, g)
		}
	}
	return m, errs.New(errs.InvalidArgument, "measure topology", fmt.Errorf("no peer of group %d is in the run", cfg.Peer.Group)).WithPeer(master)
}

// askTopology asks a master for the groups of its run. One that does not lead closes the
// connection.
func askTopology(ctx context.Context, cfg *conf.Config, master string) (wire.M2CTopology, error) {
	return question[wire.M2CTopology](ctx, cfg, "measure topology", master, wire.C2MAskTopology{})
}

// question asks a master something that needs no registration.
func question[Answer wire.Packet](ctx context.Context, cfg *conf.Config, op, master string, asks wire.Packet) (m Answer, err error) {
	o := cfg.PeerOptions(nil)
	fail := func(err error) error {
		return errs.New(errs.MasterConnectionFailed, op, err).WithPeer(master).
			WithHint("check that a gopccl master listens there; PCCL's does not answer")
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	sec, err := enroll.Obtain(ctx, guard.Options(o.Security), master, nil)
	if err != nil {
		return m, err
	}
	c, err := transport.Dial(ctx, "tcp", master)
	if err != nil {
		return m, fail(err)
	}
	defer func() { c.Close() }()
	g, err := guard.New(sec, 0)
	if err != nil {
		return m, fail(err)
	}
	if g != nil {
		s, err := g.Dial(ctx, c, secure.Want{Purpose: secure.Control})
		if err != nil {
			return m, fail(err)
		}
		c = s
	}
	defer context.AfterFunc(ctx, func() { c.Close() })()
	if _, err := c.Write(wire.Append(nil, asks)); err != nil {
		return m, fail(err)
	}
	p, err := wire.Read(c, wire.M2C, wire.MaxPacket)
	if err != nil {
		return m, fail(err)
	}
	t, ok := p.(Answer)
	if !ok {
		return m, fail(fmt.Errorf("it answered with %T", p))
	}
	return t, nil
}

func newTopologyMeasureCmd() *cobra.Command {
	var output, listen string
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "measure [HOST:PORT...]",
		Short: "Show what a master knows of the links, or measure them between hosts",
		Long: `Without arguments: ask the master (peer.master of the configuration) for the
bandwidths between the peers of a group (peer.group) and for the ring in force, and
write them as JSON, which "gopccl topology show" and "solve" read. The rates are
those that the peers measured when they optimized, and learned since.

With arguments: measure the rate from this host to each HOST:PORT, where
"gopccl topology measure --serve HOST:PORT" runs, or a peer has its benchmark
port.`,
		Example: `  gopccl topology measure --master 10.0.0.1:48148 --output run.json
  gopccl topology measure --serve :48200           # on one host
  gopccl topology measure 10.0.0.7:48200           # on another one`,
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := loadConfig(cmd)
			if err != nil {
				return err
			}
			switch {
			case listen != "" && len(args) > 0:
				return errs.New(errs.InvalidConfig, "measure topology", errors.New("--serve and hosts to measure exclude each other"))
			case listen != "":
				return serveProbes(cmd.Context(), listen, cmd.OutOrStdout())
			case len(args) > 0:
				o := probe.Options{Duration: c.Topology.Duration, Connections: c.Topology.Connections, EarlyStop: true}
				return measureHosts(cmd.Context(), args, o, asJSON, cmd.OutOrStdout())
			}
			m, err := askMaster(cmd.Context(), c)
			if err != nil {
				return err
			}
			out := cmd.OutOrStdout()
			if output != "" {
				f, err := os.Create(output)
				if err != nil {
					return err
				}
				if err := errors.Join(json.NewEncoder(f).Encode(m), f.Close()); err != nil {
					return err
				}
				_, err = fmt.Fprintf(out, "%s: %d peers\n", output, m.N)
				return err
			}
			return json.NewEncoder(out).Encode(m)
		},
	}
	fl := cmd.Flags()
	fl.String("master", "", "`HOST:PORT` of the master (default 127.0.0.1:48148)")
	peerFlags(cmd)
	fl.StringVar(&output, "output", "", "`FILE` to write instead of standard output")
	fl.StringVar(&listen, "serve", "", "`HOST:PORT` on which to be measured, until interrupted")
	fl.BoolVar(&asJSON, "json", false, "print one JSON object per host")
	return cmd
}

// serveProbes lets others measure this host.
func serveProbes(ctx context.Context, addr string, out io.Writer) error {
	ln, err := (&net.ListenConfig{}).Listen(ctx, "tcp", addr)
	if err != nil {
		return errs.New(errs.InvalidUsage, "measure topology", err).WithPeer(addr).WithHint("free the port or choose another address")
	}
	s := probe.NewServer(probe.ServerConfig{})
	defer s.Close()
	defer context.AfterFunc(ctx, s.Close)()
	fmt.Fprintf(out, "measured at %s\n", ln.Addr())
	s.Serve(ln)
	return nil
}

func measureHosts(ctx context.Context, hosts []string, o probe.Options, asJSON bool, out io.Writer) error {
	var failed []error
	var self wire.UUID
	copy(self[:], fmt.Sprintf("measure %8d", os.Getpid()))
	for _, h := range hosts {
		e, err := probe.Estimate{}, error(nil)
		a, err := net.ResolveTCPAddr("tcp", h)
		if err == nil {
			at := a.AddrPort()
			if !at.Addr().IsValid() {
				at = netip.AddrPortFrom(netip.IPv4Unspecified(), at.Port())
			}
			e, err = probe.Measure(ctx, at, self, o)
		} else {
			err = errs.New(errs.InvalidArgument, "measure topology", err).WithPeer(h)
		}
		if err != nil {
			failed = append(failed, err)
			continue
		}
		if asJSON {
			err = json.NewEncoder(out).Encode(map[string]any{"host": h, "mbps": e.Mbps, "deviation": e.Deviation, "seconds": e.Took.Seconds()})
		} else {
			_, err = fmt.Fprintf(out, "%s  %.4g Mbit/s +- %.2g  in %.2f s\n", h, e.Mbps, e.Deviation, e.Took.Seconds())
		}
		if err != nil {
			return err
		}
	}
	return errors.Join(failed...)
}
