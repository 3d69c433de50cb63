package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"time"

	"github.com/gopccl/gopccl/core"
	"github.com/gopccl/gopccl/core/errs"
)

// callLimit bounds every call of a peer. The original measures for ten seconds
// per link and waits for its turn.
const callLimit = 20 * time.Minute

// obey is a gopccl peer that speaks the line protocol of tests/internal/pccl, as
// far as it is used here, and returns the exit status of the process.
func obey(r io.Reader, w io.Writer) int {
	in := bufio.NewReader(r)
	answer := func(command string, err error, values ...any) {
		if err != nil {
			fmt.Fprintf(os.Stderr, "%s: %v\n", command, err)
		}
		line := fmt.Sprintf("%s %d", command, errs.CodeOf(err))
		for _, v := range values {
			line += fmt.Sprintf(" %v", v)
		}
		_, _ = io.WriteString(w, line+"\n")
	}
	ctx := context.Background()
	opt := core.Options{Logger: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelInfo}))}
	var comm *core.Communicator
	answer("init", nil)
	for {
		line, err := in.ReadString('\n')
		if err != nil {
			return 0
		}
		command, args, _ := strings.Cut(strings.TrimSpace(line), " ")
		switch command {
		case "comm":
			var ip string
			var port int
			if _, err := fmt.Sscan(args, &ip, &port, &opt.Group, &opt.PoolSize); err != nil {
				return 2
			}
			opt.Master = fmt.Sprintf("%s:%d", ip, port)
			answer(command, nil)
		case "connect":
			comm, err = core.Connect(ctx, opt)
			answer(command, err)
		case "update":
			answer(command, comm.UpdateTopology(ctx))
		case "optimize":
			answer(command, comm.OptimizeTopology(ctx))
		case "pending":
			yes, err := comm.PeersPending(ctx)
			n := 0
			if yes {
				n = 1
			}
			answer(command, err, n)
		case "destroy":
			answer(command, comm.Close())
		case "bench":
			var dtype, count, warmUp, rounds int
			if _, err := fmt.Sscan(args, &dtype, &count, &warmUp, &rounds); err != nil {
				return 2
			}
			bench(ctx, comm, answer, count, warmUp, rounds)
		case "quit":
			return 0
		default:
			return 2
		}
	}
}

// bench times sums of count float32 elements, out of place.
func bench(ctx context.Context, comm *core.Communicator, answer func(string, error, ...any), count, warmUp, rounds int) {
	src, dst := make([]float32, count), make([]float32, count)
	var info core.ReduceInfo
	var err error
	var times []any
	for k := -warmUp; k < rounds && err == nil; k++ {
		began := time.Now()
		info, err = core.AllReduceSlice(ctx, comm, src, dst, core.Sum)
		if k >= 0 && err == nil {
			times = append(times, time.Since(began).Nanoseconds())
		}
	}
	answer("bench", err, append([]any{info.WorldSize, info.TxBytes, info.RxBytes, 0, len(times)}, times...)...)
}
