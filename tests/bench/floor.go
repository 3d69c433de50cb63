package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
)

// The floor is what sockets cost: processes in a ring, each sends 2 (N-1)
// chunks of 1/N of the buffer to the next one and may send a byte of chunk s+1
// as soon as it has received that byte of chunk s, as in a ring all-reduce that
// computes nothing. Every byte comes out of and goes into the place of its chunk
// in the whole buffer. Two programs are tried for every job, one thread that
// sends and receives and two threads, and the faster one is the floor. That of the
// other collectives is in mesh.go.

const floorRole = "bench-floor"

// floorLinks are the connections of one process.
type floorLinks struct {
	next, prev *net.TCPConn
	rank       int
}

func floorOf(command []string) func(ctx context.Context, world int) (session, error) {
	return func(ctx context.Context, world int) (session, error) {
		s := &floorSession{}
		for _, threads := range []string{"1", "2"} {
			c, err := floorCrew(ctx, command, world, threads)
			if err != nil {
				s.close()
				return nil, err
			}
			s.crews = append(s.crews, c)
		}
		var err error
		if s.mesh, err = meshCrew(ctx, command, world); err != nil {
			s.close()
			return nil, err
		}
		return s, nil
	}
}

func floorCrew(ctx context.Context, command []string, world int, threads string) (*crew, error) {
	c := &crew{}
	fail := func(err error) (*crew, error) {
		c.close()
		return nil, err
	}
	addrs := make([]string, world)
	for i := range addrs {
		w, err := startWorker(ctx, command, floorRole, strconv.Itoa(i), strconv.Itoa(world), threads)
		if err != nil {
			return fail(err)
		}
		c.ranks = append(c.ranks, w)
		if err := w.hear(&addrs[i]); err != nil {
			return fail(err)
		}
	}
	for i, w := range c.ranks {
		if err := w.tell(addrs[(i+1)%world]); err != nil {
			return fail(err)
		}
	}
	return c, nil
}

// floorSession runs both programs and takes the faster one. mesh is for other collectives.
type floorSession struct {
	crews []*crew
	mesh  *crew
}

func (s *floorSession) run(ctx context.Context, j job, rounds int) (best turn, err error) {
	if j.Pattern != "" {
		return s.mesh.run(ctx, j, rounds)
	}
	for _, c := range s.crews {
		t, err := c.run(ctx, j, rounds)
		if err != nil {
			return t, err
		}
		if best.Seconds == nil || t.median() < best.median() {
			best = t
		}
	}
	return best, nil
}

func (s *floorSession) close() error {
	for _, c := range s.crews {
		c.close()
	}
	if s.mesh != nil {
		s.mesh.close()
	}
	return nil
}

// introduce listens, tells the parent where, and takes its answer: whom to dial. The
// caller closes ln; orders follow on in.
func introduce[T any]() (ln net.Listener, whom T, in io.Reader, err error) {
	in = orders(os.Stdin)
	if ln, err = net.Listen("tcp4", "127.0.0.1:0"); err != nil {
		return nil, whom, nil, err
	}
	lines := json.NewDecoder(in)
	if err = json.NewEncoder(os.Stdout).Encode(ln.Addr().String()); err == nil {
		err = lines.Decode(&whom)
	}
	if err != nil {
		ln.Close()
		return nil, whom, nil, err
	}
	return ln, whom, io.MultiReader(lines.Buffered(), in), nil
}

// runFloorPeer is the body of one process: rank, world, threads.
func runFloorPeer(_ context.Context, args []string) error {
	if len(args) != 3 {
		return fmt.Errorf("want RANK WORLD THREADS, got %q", args)
	}
	rank, err := strconv.Atoi(args[0])
	if err != nil {
		return err
	}
	world, err := strconv.Atoi(args[1])
	if err != nil {
		return err
	}
	ln, addr, in, err := introduce[string]()
	if err != nil {
		return err
	}
	defer ln.Close()
	next, err := net.Dial("tcp4", addr)
	if err != nil {
		return err
	}
	prev, err := ln.Accept()
	if err != nil {
		return err
	}
	r, err := newRing(floorLinks{next.(*net.TCPConn), prev.(*net.TCPConn), rank}, world, args[2] == "2")
	if err != nil {
		return err
	}
	return serve(in, os.Stdout, r.run)
}
