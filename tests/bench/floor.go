package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"sync"
	"time"

	"github.com/gopccl/gopccl/platform"
)

// The floor is what sockets cost: processes in a ring, each sends 2 (N-1)
// chunks of 1/N of the buffer to the next one and may send a byte of chunk s+1
// as soon as it has received that byte of chunk s, as in a ring all-reduce
// that computes nothing.

const (
	floorPeerArg = "floor-peer"
	floorPiece   = 256 << 10
	floorLimit   = time.Minute
)

// floorOrder is the first line on a process's input, after it has told where
// it listens; an answer with the times of its rounds follows.
type floorOrder struct {
	Next                 string
	World, Count, Rounds int
}

// floor starts the processes and returns the time of the slowest in each round.
func floor(ctx context.Context, world, count, rounds int) (slowest []float64, err error) {
	ctx, cancel := context.WithTimeout(ctx, floorLimit)
	defer cancel()
	type peer struct {
		cmd *exec.Cmd
		in  io.WriteCloser
		out *json.Decoder
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	peers := make([]peer, 0, world)
	defer func() {
		cancel() // kills what still runs
		for _, p := range peers {
			p.cmd.Wait()
		}
	}()
	addrs := make([]string, world)
	for i := range world {
		p := peer{cmd: exec.CommandContext(ctx, self, floorPeerArg)}
		p.cmd.Stderr = os.Stderr
		in, inErr := p.cmd.StdinPipe()
		out, outErr := p.cmd.StdoutPipe()
		if err := errors.Join(inErr, outErr); err != nil {
			return nil, err
		}
		if err := p.cmd.Start(); err != nil {
			return nil, err
		}
		p.in, p.out = in, json.NewDecoder(bufio.NewReader(out))
		peers = append(peers, p)
		if err := p.out.Decode(&addrs[i]); err != nil {
			return nil, fmt.Errorf("floor process %d: %w", i, err)
		}
	}
	for i, p := range peers {
		o := floorOrder{Next: addrs[(i+1)%world], World: world, Count: count, Rounds: rounds}
		if err := json.NewEncoder(p.in).Encode(o); err != nil {
			return nil, err
		}
	}
	slowest = make([]float64, rounds)
	for i, p := range peers {
		var times []float64
		if err := p.out.Decode(&times); err != nil {
			return nil, fmt.Errorf("floor process %d: %w", i, err)
		}
		for k := range slowest {
			slowest[k] = max(slowest[k], times[k])
		}
	}
	return []float64{median(slowest)}, nil
}

// floorPeer is the body of one process.
func floorPeer(in io.Reader, out io.Writer) error {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	defer ln.Close()
	answers := json.NewEncoder(out)
	if err := answers.Encode(ln.Addr().String()); err != nil {
		return err
	}
	var o floorOrder
	if err := json.NewDecoder(in).Decode(&o); err != nil {
		return err
	}
	next, err := net.DialTimeout("tcp", o.Next, floorLimit)
	if err != nil {
		return err
	}
	defer next.Close()
	ln.(*net.TCPListener).SetDeadline(time.Now().Add(floorLimit))
	prev, err := ln.Accept()
	if err != nil {
		return err
	}
	defer prev.Close()
	for _, c := range []net.Conn{next, prev} {
		if err := errors.Join(platform.TuneP2P(c, platform.Options{Congestion: platform.CongestionAuto}),
			c.SetDeadline(time.Now().Add(floorLimit))); err != nil {
			return err
		}
	}
	r := ring{next: next, prev: prev, buf: make([]byte, max(1, 4*o.Count/o.World))}
	times := make([]float64, 0, o.Rounds)
	for k := range o.Rounds + 1 {
		// One byte around the ring twice is the barrier.
		if err := (&ring{next: next, prev: prev, buf: make([]byte, 1)}).pass(2 * o.World); err != nil {
			return err
		}
		start := time.Now()
		if err := r.pass(2 * (o.World - 1)); err != nil {
			return err
		}
		if k > 0 {
			times = append(times, time.Since(start).Seconds())
		}
	}
	return answers.Encode(times)
}

// ring passes chunks of the size of buf on.
type ring struct {
	next, prev net.Conn
	buf        []byte

	mu       sync.Mutex
	moved    sync.Cond
	received int
	err      error
}

// pass sends and receives chunks, each byte not before the same byte of the
// chunk before has arrived.
func (r *ring) pass(chunks int) error {
	r.moved.L = &r.mu
	r.received, r.err = 0, nil
	total := chunks * len(r.buf)
	var wg sync.WaitGroup
	wg.Go(func() {
		for got := 0; got < total; {
			at := got % len(r.buf)
			n, err := r.prev.Read(r.buf[at:min(len(r.buf), at+floorPiece, at+total-got)])
			got += n
			r.mu.Lock()
			r.received, r.err = got, err
			r.mu.Unlock()
			r.moved.Signal()
			if err != nil {
				return
			}
		}
	})
	var err error
	for sent := 0; sent < total && err == nil; {
		r.mu.Lock()
		for r.err == nil && sent >= len(r.buf)+r.received {
			r.moved.Wait()
		}
		may := min(total, len(r.buf)+r.received) - sent
		err = r.err
		r.mu.Unlock()
		if err != nil {
			break
		}
		at := sent % len(r.buf)
		n := min(may, floorPiece, len(r.buf)-at)
		_, err = r.next.Write(r.buf[at : at+n])
		sent += n
	}
	if err != nil {
		r.prev.SetDeadline(time.Now()) // wakes the reader
	}
	wg.Wait()
	return errors.Join(err, r.err)
}
