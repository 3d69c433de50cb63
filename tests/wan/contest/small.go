package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/gopccl/gopccl/tests/internal/lab"
)

// A small message to the master's host and back is what a vote or a heartbeat is. One
// goes from every peer's host, beside what the contestants do, each smallPause.
const (
	smallBytes = 64
	smallPause = 50 * time.Millisecond
	smallPort  = 48200
)

// smalls are the processes that send them, one for each host of a peer.
type smalls struct {
	echo  *proc
	procs []*proc
}

func newSmalls(l *lab.Lab) (_ *smalls, err error) {
	last, s := len(l.Hosts)-1, &smalls{}
	if s.echo, err = begin(l, last, order{Role: "echo", Listen: at(l, last, smallPort)}); err != nil {
		return s, err
	}
	if _, err := s.echo.hear(); err != nil {
		return s, err
	}
	for i := range last {
		p, err := begin(l, i, order{Role: "small", Next: at(l, last, smallPort)})
		if err != nil {
			return s, err
		}
		s.procs = append(s.procs, p)
		if _, err := p.hear(); err != nil {
			return s, err
		}
	}
	return s, nil
}

// during returns how long each message took while f ran.
func (s *smalls) during(f func() error) (took []time.Duration, err error) {
	if s == nil {
		return nil, f()
	}
	for _, p := range s.procs {
		if _, err := fmt.Fprintln(p.in, 1); err != nil {
			return nil, err
		}
	}
	failed := f()
	for _, p := range s.procs {
		if _, err := fmt.Fprintln(p.in, 0); err != nil {
			return nil, err
		}
	}
	for _, p := range s.procs {
		r, err := p.hear()
		if err != nil {
			return nil, err
		}
		took = append(took, r.Small...)
	}
	return took, failed
}

func (s *smalls) close() {
	if s == nil {
		return
	}
	for _, p := range append(s.procs, s.echo) {
		if p != nil {
			p.in.Close()
		}
	}
}

// spread says how long messages took.
func spread(took []time.Duration) string {
	if len(took) == 0 {
		return "none"
	}
	slices.Sort(took)
	ms := func(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
	return fmt.Sprintf("median %.0f ms, 90 %% %.0f ms, worst %.0f ms of %d",
		ms(took[len(took)/2]), ms(took[len(took)*9/10]), ms(took[len(took)-1]), len(took))
}

// echo answers everybody with what came.
func echo(listen string) error {
	ln, err := net.Listen("tcp", listen)
	if err != nil {
		return err
	}
	_ = json.NewEncoder(os.Stdout).Encode(report{Ready: true})
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			go func() { _, _ = io.Copy(c, c) }()
		}
	}()
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}

// sendSmalls sends messages between a line with 1 and one with 0, and then says how
// long they took.
func sendSmalls(to string) error {
	c, err := dial(to)
	if err != nil {
		return err
	}
	defer c.Close()
	say := json.NewEncoder(os.Stdout)
	_ = say.Encode(report{Ready: true})
	for {
		var line int
		if _, err := fmt.Scan(&line); err != nil {
			return nil // the end
		}
		var took []time.Duration
		var failed error
		stop := make(chan struct{})
		var wg sync.WaitGroup
		wg.Go(func() {
			message := make([]byte, smallBytes)
			tick := time.NewTicker(smallPause)
			defer tick.Stop()
			for {
				began := time.Now()
				if _, failed = c.Write(message); failed == nil {
					_, failed = io.ReadFull(c, message)
				}
				if failed != nil {
					return
				}
				took = append(took, time.Since(began))
				select {
				case <-stop:
					return
				case <-tick.C:
				}
			}
		})
		_, err := fmt.Scan(&line)
		close(stop)
		wg.Wait()
		r := report{Small: took}
		if failed != nil {
			r.Err = failed.Error()
		}
		_ = say.Encode(r)
		if err != nil {
			return err
		}
	}
}
