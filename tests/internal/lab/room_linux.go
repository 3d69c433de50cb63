package lab

import (
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// room is the processor that carries packets, while a network of this process has it to itself. The carrier goes
// before all others there, and leaves them little: what waits behind it may wait for seconds. That may be a thread
// of the kernel that has a lock of a host, which then stands still, or one of this process that is about
// to have some hosts begin, when others have. So they leave it to the carrier, as far as they may run elsewhere.
var room struct {
	mu    sync.Mutex
	users int
	moved map[int]string // threads of the kernel, and when they began
}

// allowed returns the processors that this process may run on when none is left to a carrier; none: that is not
// known.
var allowed = sync.OnceValue(func() (list []int) {
	var set unix.CPUSet
	if unix.SchedGetaffinity(0, &set) != nil {
		return nil
	}
	for c := range len(set) * 64 {
		if set.IsSet(c) {
			list = append(list, c)
		}
	}
	return list
})

// makeRoom has others leave the carrier, as far as it is allowed to. What it returns has them come back when all
// networks of this process are closed. If the process is killed before, threads of the kernel keep away.
func makeRoom(carrier int) (back func()) {
	room.mu.Lock()
	defer room.mu.Unlock()
	if room.users++; room.users == 1 {
		// The Go runtime would use one processor less by itself, and the carrier share what is left.
		runtime.GOMAXPROCS(runtime.GOMAXPROCS(0))
		shiftSelf(carrier, false)
		room.moved = map[int]string{}
		for tid, since := range kernel() {
			if move(tid, carrier, false) {
				room.moved[tid] = since
			}
		}
	}
	return func() {
		room.mu.Lock()
		defer room.mu.Unlock()
		if room.users--; room.users > 0 {
			return
		}
		shiftSelf(carrier, true)
		now := kernel()
		for tid, since := range room.moved {
			if now[tid] == since {
				move(tid, carrier, true)
			}
		}
	}
}

// shiftSelf has all threads of this process use a processor, or leave it: also those that others of them
// start meanwhile.
func shiftSelf(processor int, use bool) {
	for range 10 {
		changed := false
		names, _ := filepath.Glob("/proc/self/task/*")
		for _, name := range names {
			if tid, err := strconv.Atoi(filepath.Base(name)); err == nil && move(tid, processor, use) {
				changed = true
			}
		}
		if !changed {
			return
		}
	}
}

// move has a thread use a processor, or leave it for others that it may use; false: nothing has changed.
func move(tid, processor int, use bool) bool {
	var set unix.CPUSet
	if unix.SchedGetaffinity(tid, &set) != nil || set.IsSet(processor) == use {
		return false
	}
	if use {
		set.Set(processor)
	} else {
		set.Clear(processor)
	}
	return set.Count() > 0 && unix.SchedSetaffinity(tid, &set) == nil
}

// Flags of a process in /proc: it is of the kernel, and where it runs is not for others to say.
const (
	flagKernel = 0x00200000
	flagBound  = 0x04000000
)

// kernel returns the threads of the kernel whose processors may be chosen, and when they began.
func kernel() map[int]string {
	found := map[int]string{}
	names, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, name := range names {
		text, err := os.ReadFile(name)
		if err != nil {
			continue
		}
		_, rest, _ := strings.Cut(string(text), ") ") // names of threads may have blanks
		fields := strings.Fields(rest)                // the first is the third of proc(5)
		if len(fields) < 20 {
			continue
		}
		flags, err := strconv.ParseUint(fields[6], 10, 64)
		if tid, bad := strconv.Atoi(filepath.Base(filepath.Dir(name))); err == nil && bad == nil && flags&flagKernel != 0 && flags&flagBound == 0 {
			found[tid] = fields[19]
		}
	}
	return found
}
