package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
)

// The floor of the collectives besides all-reduce: one thread in each process that sends
// and receives what the engine's plan says, on a connection to and one from every other
// process, and adds what is to be added. No heads, votes, undo or aborts. A barrier is
// a byte to and from others in each of log2(N) rounds.

const meshRole = "bench-floor-mesh"

func meshCrew(ctx context.Context, command []string, world int) (*crew, error) {
	c := &crew{}
	fail := func(err error) (*crew, error) {
		c.close()
		return nil, err
	}
	addrs := make([]string, world)
	for i := range addrs {
		w, err := startWorker(ctx, command, meshRole, strconv.Itoa(i), strconv.Itoa(world))
		if err != nil {
			return fail(err)
		}
		c.ranks = append(c.ranks, w)
		if err := w.hear(&addrs[i]); err != nil {
			return fail(err)
		}
	}
	for _, w := range c.ranks {
		if err := w.tell(addrs); err != nil {
			return fail(err)
		}
	}
	return c, nil
}

// runMeshPeer is the body of one process: rank, world.
func runMeshPeer(_ context.Context, args []string) error {
	if len(args) != 2 {
		return fmt.Errorf("want RANK WORLD, got %q", args)
	}
	me, err := strconv.Atoi(args[0])
	if err != nil {
		return err
	}
	world, err := strconv.Atoi(args[1])
	if err != nil {
		return err
	}
	ln, addrs, in, err := introduce[[]string]()
	if err != nil {
		return err
	}
	defer ln.Close()
	to, from, err := connectAll(ln, addrs, me, world)
	if err != nil {
		return err
	}
	m, err := newMesh(to, from, me)
	if err != nil {
		return err
	}
	return serve(in, os.Stdout, m.run)
}

// connectAll dials everybody, and is dialled by everybody.
func connectAll(ln net.Listener, addrs []string, me, world int) (to, from []*net.TCPConn, err error) {
	if len(addrs) != world || me < 0 || me >= world || world > 256 {
		return nil, nil, fmt.Errorf("%d addresses for rank %d of %d", len(addrs), me, world)
	}
	to, from = make([]*net.TCPConn, world), make([]*net.TCPConn, world)
	for i, addr := range addrs {
		if i == me {
			continue
		}
		c, err := net.Dial("tcp4", addr)
		if err != nil {
			return nil, nil, err
		}
		if _, err := c.Write([]byte{byte(me)}); err != nil {
			return nil, nil, err
		}
		to[i] = c.(*net.TCPConn)
	}
	for range world - 1 {
		c, err := ln.Accept()
		if err != nil {
			return nil, nil, err
		}
		rank := make([]byte, 1)
		if _, err := io.ReadFull(c, rank); err != nil {
			return nil, nil, err
		}
		if int(rank[0]) >= world || from[rank[0]] != nil {
			return nil, nil, fmt.Errorf("rank %d of %d has connected", rank[0], world)
		}
		from[rank[0]] = c.(*net.TCPConn)
	}
	return to, from, nil
}
