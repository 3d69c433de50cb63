package host

import (
	"os"
	"os/exec"
	"time"
	"unsafe"

	"golang.org/x/sys/windows"
)

// group is a job object: it ends with its last handle, which is ours, and it
// bounds memory.
type group struct{ job windows.Handle }

// limitsMemory: the job object does it, nobody has to watch.
const limitsMemory = true

func (g *group) start(cmd *exec.Cmd, memory int64) error {
	job, err := windows.CreateJobObject(nil, nil)
	if err != nil {
		return err
	}
	var info windows.JOBOBJECT_EXTENDED_LIMIT_INFORMATION
	info.BasicLimitInformation.LimitFlags = windows.JOB_OBJECT_LIMIT_KILL_ON_JOB_CLOSE
	if memory > 0 {
		info.BasicLimitInformation.LimitFlags |= windows.JOB_OBJECT_LIMIT_JOB_MEMORY
		info.JobMemoryLimit = uintptr(memory)
	}
	_, err = windows.SetInformationJobObject(job, windows.JobObjectExtendedLimitInformation, uintptr(unsafe.Pointer(&info)), uint32(unsafe.Sizeof(info)))
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		windows.CloseHandle(job)
		return err
	}
	g.job = job
	// Until here a plugin could start others that escape; nothing can be done
	// without starting it suspended.
	h, err := windows.OpenProcess(windows.PROCESS_SET_QUOTA|windows.PROCESS_TERMINATE, false, uint32(cmd.Process.Pid))
	if err == nil {
		err = windows.AssignProcessToJobObject(job, h)
		windows.CloseHandle(h)
	}
	if err != nil {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		windows.CloseHandle(job)
	}
	return err
}

func (g *group) wait(cmd *exec.Cmd, sweep func()) error {
	err := cmd.Wait()
	sweep()
	windows.CloseHandle(g.job)
	return err
}

func (g *group) kill(*exec.Cmd) { _ = windows.TerminateJobObject(g.job, 1) }

func (g *group) memory(*exec.Cmd, *os.File) int64 { return 0 }

// accounting is JOBOBJECT_BASIC_ACCOUNTING_INFORMATION; times are in 100 ns.
type accounting struct {
	user, kernel, periodUser, periodKernel      int64
	faults, processes, active, terminatedByJobs uint32
}

const basicAccounting = 1 // JobObjectBasicAccountingInformation

func (g *group) cpu(*exec.Cmd) (time.Duration, bool) {
	var a accounting
	err := windows.QueryInformationJobObject(g.job, basicAccounting, uintptr(unsafe.Pointer(&a)), uint32(unsafe.Sizeof(a)), nil)
	return time.Duration(a.user+a.kernel) * 100, err == nil
}
