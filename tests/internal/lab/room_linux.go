package lab

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"

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
	heir  func()         // ends the program that has them come back if this process cannot
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
// networks of this process are closed. If the process ends before, threads of the kernel come back by themselves.
func makeRoom(carrier int) (back func()) {
	room.mu.Lock()
	defer room.mu.Unlock()
	if room.users++; room.users == 1 {
		// The Go runtime would use one processor less by itself, and the carrier share what is left.
		runtime.GOMAXPROCS(runtime.GOMAXPROCS(0))
		shiftSelf(carrier, false)
		all := kernel()
		room.moved, room.heir = map[int]string{}, inherit(all)
		for tid, since := range all {
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
		room.heir()
	}
}

// inherit starts a program that has threads run where they may now, when this process has ended: a test that fails,
// or an interrupt, would leave them where they are. It ends without that when what is returned is called.
func inherit(tids map[int]string) (end func()) {
	var script strings.Builder
	script.WriteString("read -r _\n") // returns when this process has ended, and the pipe with it
	for tid := range tids {
		var set unix.CPUSet
		if unix.SchedGetaffinity(tid, &set) == nil {
			fmt.Fprintf(&script, "taskset -pc %s %d\n", list(&set), tid)
		}
	}
	cmd := exec.Command("sh", "-c", script.String())
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // an interrupt from a terminal is not for it
	in, err := cmd.StdinPipe()
	if err != nil || cmd.Start() != nil {
		return func() {}
	}
	return func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		_ = in.Close()
	}
}

// list names the processors of a set for taskset(1).
func list(set *unix.CPUSet) string {
	var names []string
	for c := range len(set) * 64 {
		if set.IsSet(c) {
			names = append(names, strconv.Itoa(c))
		}
	}
	return strings.Join(names, ",")
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
