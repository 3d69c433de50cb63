package compat

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"time"

	"go.uber.org/goleak"

	_ "github.com/gopccl/gopccl/backends/defaults"
	"github.com/gopccl/gopccl/core"
	"github.com/gopccl/gopccl/core/dtype"
	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/internal/quorum/node"
	_ "github.com/gopccl/gopccl/quantizers/defaults"
	_ "github.com/gopccl/gopccl/solvers/defaults"
	"github.com/gopccl/gopccl/tests/internal/issued"
	"github.com/gopccl/gopccl/tests/internal/pccl"
)

// driver speaks the line protocol of package pccl for gopccl, as original/driver.c does for the original library.
type driver struct {
	in     *bufio.Reader
	out    *bufio.Writer
	log    *slog.Logger
	opt    core.Options
	comm   *core.Communicator
	master *core.Master
	served chan error
	one    *node.Node // of several masters
	flying map[uint64]flight
}

type flight struct {
	handle *core.Handle
	dst    []byte
}

// resumeEnv has the sessions of a driver go on with another master.
const resumeEnv = "GOPCCL_TEST_RESUME"

// mastersEnv makes the master of a driver one of several: where these talk, separated by
// commas, which of them it is, and its directory. knownEnv are the masters that a peer of ours
// knows.
const (
	mastersEnv = "GOPCCL_TEST_MASTERS"
	knownEnv   = "GOPCCL_TEST_KNOWN"
)

// tlsEnv is the port of a gopccl master for the peers that are in TLS; the other one is for
// PCCL's. "": all are in plaintext.
const tlsEnv = "GOPCCL_TEST_TLS_PORT"

// runDriver obeys standard input and returns the exit status of the process.
func runDriver() int {
	d := &driver{
		in: bufio.NewReaderSize(os.Stdin, 1<<16), out: bufio.NewWriterSize(os.Stdout, 1<<16),
		log:    slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug})),
		flying: map[uint64]flight{},
	}
	d.opt.ReattachTimeout = -1
	if os.Getenv(resumeEnv) != "" {
		d.opt.ReattachTimeout = callLimit
	}
	d.answer("init", nil)
	for {
		line, err := d.in.ReadString('\n')
		if err != nil {
			return 0
		}
		command, args, _ := strings.Cut(strings.TrimSpace(line), " ")
		if command == "quit" {
			// A peer that left in order leaves nothing behind.
			if err := goleak.Find(); err != nil {
				fmt.Fprintln(os.Stderr, err)
				return 3
			}
			return 0
		}
		if err := d.obey(command, args); err != nil {
			fmt.Fprintf(os.Stderr, "driver: %q: %v\n", strings.TrimSpace(line), err)
			return 2
		}
	}
}

// answer writes the result of a command, the values and then the buffers.
func (d *driver) answer(command string, err error, values ...any) error {
	if err != nil {
		d.log.Info("call failed", "call", command, "error", err)
	}
	fmt.Fprintf(d.out, "%s %d", command, errs.CodeOf(err))
	for _, v := range values {
		if _, ok := v.([]byte); !ok {
			fmt.Fprintf(d.out, " %v", v)
		}
	}
	d.out.WriteByte('\n')
	for _, v := range values {
		if b, ok := v.([]byte); ok {
			d.out.Write(b)
		}
	}
	return d.out.Flush()
}

// obey carries out one command. The error says that the parent does not speak the protocol.
func (d *driver) obey(command, args string) error {
	ctx, cancel := context.WithTimeout(context.Background(), callLimit-10*time.Second)
	defer cancel()
	switch command {
	case "master":
		var ip string
		var port int
		if _, err := fmt.Sscan(args, &ip, &port); err != nil {
			return err
		}
		return d.answer(command, d.runMaster(fmt.Sprintf("%s:%d", ip, port)))
	case "mstop":
		err := errors.Join(d.master.Close(), <-d.served)
		if d.one != nil {
			d.one.Close()
		}
		return d.answer(command, err)
	case "comm":
		var ip string
		var port int
		var err error
		if _, err = fmt.Sscan(args, &ip, &port, &d.opt.Group, &d.opt.PoolSize); err != nil {
			return err
		}
		if tls := os.Getenv(tlsEnv); tls != "" {
			if port, err = strconv.Atoi(tls); err != nil {
				return err
			}
			issued.Peer(&d.opt.Security)
			d.opt.Security.PCCLGroups = []uint32{0}
		}
		d.opt.Master, d.opt.Logger = cmp.Or(os.Getenv(knownEnv), fmt.Sprintf("%s:%d", ip, port)), d.log
		d.opt.Probe.Duration, d.opt.Probe.Connections = 200*time.Millisecond, 1
		return d.answer(command, nil)
	case "connect":
		var err error
		d.comm, err = core.Connect(ctx, d.opt)
		return d.answer(command, err)
	case "update":
		return d.answer(command, d.comm.UpdateTopology(ctx))
	case "optimize":
		return d.answer(command, d.comm.OptimizeTopology(ctx))
	case "destroy":
		return d.answer(command, d.comm.Close())
	case "pending":
		yes, err := d.comm.PeersPending(ctx)
		n := 0
		if yes {
			n = 1
		}
		return d.answer(command, err, n)
	case "attr":
		a := d.comm.Attributes()
		values := map[string]int{"1": a.GlobalWorldSize, "2": a.LocalWorldSize, "3": a.NumGroups, "4": a.LargestGroupSize}
		return d.answer(command, nil, values[args])
	case "ring":
		a := d.comm.Attributes()
		values := []any{a.UUID}
		for _, u := range a.Ring {
			values = append(values, u)
		}
		return d.answer(command, nil, values...)
	case "reduce":
		r, err := d.readOperation(args)
		if err != nil {
			return err
		}
		info, err := d.comm.AllReduce(ctx, r)
		return d.answer(command, err, info.WorldSize, info.TxBytes, info.RxBytes, r.Dst)
	case "launch":
		r, err := d.readOperation(args)
		if err != nil {
			return err
		}
		h, err := d.comm.AllReduceAsync(ctx, r)
		if err == nil {
			d.flying[r.Tag] = flight{h, r.Dst}
		}
		return d.answer(command, err)
	case "await":
		var tag uint64
		if _, err := fmt.Sscan(args, &tag); err != nil {
			return err
		}
		f, ok := d.flying[tag]
		if !ok {
			return d.answer(command, errs.InvalidArgument, 0, 0, 0, 0)
		}
		delete(d.flying, tag)
		info, err := f.handle.Wait(ctx)
		return d.answer(command, err, info.WorldSize, info.TxBytes, info.RxBytes, len(f.dst), f.dst)
	case "retry":
		return d.retry(ctx, args)
	case "sync":
		return d.sync(ctx, args)
	}
	return errors.New("unknown command")
}

func (d *driver) runMaster(addr string) error {
	o := core.MasterOptions{Listen: addr, Logger: d.log}
	if tls := os.Getenv(tlsEnv); tls != "" {
		o.Listen = "127.0.0.1:" + tls
		issued.Master(&o.Security)
		o.Security.PCCLListen, o.Security.PCCLGroups = addr, []uint32{0}
		o.Security.PCCLNetworks = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}
	}
	if one := strings.Fields(os.Getenv(mastersEnv)); len(one) > 0 {
		n, err := node.New(node.Options{Masters: strings.Split(one[0], ","), Self: one[1], Dir: one[2], Logger: d.log})
		if err != nil {
			return err
		}
		o.Authority, d.one = n, n
	}
	m, err := core.NewMaster(o)
	if err != nil {
		d.log.Info("no master", "error", err)
		return errs.InvalidUsage
	}
	d.master, d.served = m, make(chan error, 1)
	go func() { d.served <- m.Run(context.Background()) }()
	return nil
}

// readOperation parses "in|out TAG OP TYPE QUANTIZED_TYPE ALGORITHM BYTES" and reads the input.
func (d *driver) readOperation(words string) (core.Reduce, error) {
	var r core.Reduce
	var place string
	var op, typ, quantized uint8
	var algorithm pccl.Algorithm
	var bytes int
	if _, err := fmt.Sscan(words, &place, &r.Tag, &op, &typ, &quantized, &algorithm, &bytes); err != nil {
		return r, err
	}
	var known [3]bool
	r.Op, known[0] = dtype.OpFromABI(op)
	r.DType, known[1] = dtype.TypeFromABI(typ)
	r.Quantize.Type, known[2] = dtype.TypeFromABI(quantized)
	if known != [3]bool{true, true, true} {
		return r, errors.New("unknown number")
	}
	r.Quantize.Algorithm = algorithm.String()
	r.Src = make([]byte, bytes)
	if _, err := io.ReadFull(d.in, r.Src); err != nil {
		return r, err
	}
	r.Dst = r.Src
	if place == "out" {
		r.Dst = make([]byte, bytes)
	}
	return r, nil
}

func (d *driver) retry(ctx context.Context, args string) error {
	var inFlight, n int
	if _, err := fmt.Sscan(args, &inFlight, &n); err != nil {
		return err
	}
	rs := make([]core.Reduce, n)
	buffers := make([]any, n)
	for i := range rs {
		line, err := d.in.ReadString('\n')
		if err != nil {
			return err
		}
		if rs[i], err = d.readOperation(line); err != nil {
			return err
		}
		buffers[i] = rs[i].Dst
	}
	info, err := d.comm.AllReduceMultipleWithRetry(ctx, rs, inFlight)
	return d.answer("retry", err, append([]any{info.WorldSize, info.TxBytes, info.RxBytes}, buffers...)...)
}

func (d *driver) sync(ctx context.Context, args string) error {
	var st core.SharedState
	var strategy core.Strategy
	var n int
	if _, err := fmt.Sscan(args, &st.Revision, &strategy, &n); err != nil {
		return err
	}
	buffers := make([]any, n)
	for i := range n {
		line, err := d.in.ReadString('\n')
		if err != nil {
			return err
		}
		var t core.Tensor
		var typ uint8
		var allow, bytes int
		if _, err := fmt.Sscan(line, &t.Key, &typ, &allow, &bytes); err != nil {
			return err
		}
		var known bool
		if t.DType, known = dtype.TypeFromABI(typ); !known {
			return errors.New("unknown type")
		}
		t.AllowInequality = allow == 1
		t.Data = make([]byte, bytes)
		if _, err := io.ReadFull(d.in, t.Data); err != nil {
			return err
		}
		st.Tensors = append(st.Tensors, t)
		buffers[i] = t.Data
	}
	info, err := d.comm.SyncSharedState(ctx, &st, core.SyncOptions{Strategy: strategy})
	return d.answer("sync", err, append([]any{st.Revision, info.TxBytes, info.RxBytes}, buffers...)...)
}
