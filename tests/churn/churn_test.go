package main

import (
	"flag"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/tests/internal/world"
)

var soak = flag.Bool("soak", false, "ten minutes instead of one")

func TestMain(m *testing.M) {
	world.Serve()
	os.Exit(m.Run())
}

// Kills every 0.5 to 1 s among steps of about 100 ms, with trainers that
// join, leave, are stopped and lose their links, plain and quantized, with the
// ring ordered by measurements; every result is compared with the model.
// How long the survivors take is recorded, and failure paths are counted:
// two thirds of the kills at least hit operations in flight.
func TestChurn(t *testing.T) {
	o := options{length: time.Minute, seed: uint64(time.Now().UnixNano() % 1000), most: 8, count: 64 << 10, compute: 40 * time.Millisecond}
	if *soak {
		o = options{length: 10 * time.Minute, seed: o.seed}.usual()
	}
	o.tell = func(text string) { t.Log(text) }
	t.Logf("seed %d", o.seed)
	r, err := run(t.Context(), o)
	require.NoError(t, err)
	t.Log("\n" + r.table())
	require.NoError(t, r.conditions()) // S2-20, S2-53
	require.NotZero(t, r.kills+r.leaves)
	require.NotEmpty(t, r.page(""))
}

// The conditions are none that every run meets.
func TestConditionsHaveTeeth(t *testing.T) {
	good := func() *result {
		r := &result{}
		r.kills = 80
		r.books = world.Books{Steps: 300, Operations: 900, Full: 800, Hit: 100}
		r.books.Deaths.Took = []time.Duration{time.Millisecond}
		r.usage = []usage{{name: "master", memory: 10 << 20, final: 12 << 20, files: 20, open: 21, known: true}}
		return r
	}
	require.NoError(t, good().conditions())
	for what, change := range map[string]func(*result){
		"a wrong result":             func(r *result) { r.books.Wrong = 1 },
		"an honest peer dropped":     func(r *result) { r.books.Dropped = 1 },
		"few operations with all":    func(r *result) { r.books.Full = 299 },
		"few operations hit":         func(r *result) { r.books.Hit = 49 },
		"hardly a step":              func(r *result) { r.books.Steps = 79 },
		"nobody killed while it ran": func(r *result) { r.books.Deaths.Took = nil },
		"a second repeat":            func(r *result) { r.dark.again = 1 },
		"memory that grows":          func(r *result) { r.usage[0].final += memoryGrowth },
		"descriptors that stay open": func(r *result) { r.usage[0].open += fileGrowth },
	} {
		r := good()
		change(r)
		require.Error(t, r.conditions(), what)
	}
}
