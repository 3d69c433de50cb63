#!/usr/bin/env bash
# Runs the parts of the kit, each within its time limit, whatever becomes of those before:
#   run.sh [-seconds N] [-out DIR] [-interpreter] [PART ...]
# -seconds  for all parts together (570); what has no time left is named at the end
# -out      where gpu-logs.tgz goes (here); it is written again after every part
# -interpreter  small sizes without a GPU, to see that the kit itself is sound
# The exit code is 0 if all parts that were asked for have passed.
set -u
kit=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
python=${PYTHON:-python3}
seconds=570 out=$PWD interpreter=
while [ $# -gt 0 ]; do
	case $1 in
	-seconds) seconds=$2 && shift ;;
	-out) out=$2 && shift ;;
	-interpreter) interpreter=yes ;;
	-*) sed -n '2,8s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" && exit 2 ;;
	*) break ;;
	esac
	shift
done
asked=("$@")
mkdir -p "$out" && out=$(cd "$out" && pwd)
logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT
cd "$kit" || exit 2
export HOME=${HOME:-$logs} PYTHONUNBUFFERED=1 PYTHONPATH=$kit/python GOPCCL_LIBRARY=$kit/libgopccl.so PCCL_LOG_LEVEL=ERR

# The loader finds libcuda.so.1, and the driver its compiler, only where it looks.
find_driver() {
	ldconfig -p 2>/dev/null | grep libcuda.so.1 >/dev/null && return
	local dir
	for dir in /usr/local/nvidia/lib64 /usr/local/nvidia/lib /usr/lib64 /usr/lib/x86_64-linux-gnu /usr/lib/wsl/lib; do
		if [ -e "$dir/libcuda.so.1" ]; then
			export LD_LIBRARY_PATH=$dir${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
			return
		fi
	done
}

machine() {
	cat version
	uname -a
	nproc
	free -g
	ulimit -l
	echo "LD_LIBRARY_PATH=${LD_LIBRARY_PATH:-}"
	ldconfig -p | grep -E 'libcuda\.|ptxjitcompiler'
	env | grep -E '^(CUDA|NVIDIA)_'
	"$python" -c 'import torch; print("PyTorch", torch.__version__, torch.version.cuda, torch.cuda.is_available())'
	[ -n "$interpreter" ] || nvidia-smi -q -d MEMORY,CLOCK,ECC,PERFORMANCE | sed -n 1,120p
	[ -n "$interpreter" ] || nvidia-smi --query-gpu=name,driver_version,pcie.link.gen.current,pcie.link.width.current,mig.mode.current --format=csv
}

verdicts=() left_out=() failed=0
# part NAME SECONDS COMMAND...: a part that does not end in time is asked for what its goroutines do, and then killed.
part() {
	local name=$1 limit=$2 begin=$SECONDS code
	shift 2
	if [ ${#asked[@]} -gt 0 ]; then
		case " ${asked[*]} " in *" $name "*) ;; *) return ;; esac
	fi
	if [ $((seconds - SECONDS)) -lt 15 ]; then
		left_out+=("$name")
		return
	fi
	[ "$limit" -le $((seconds - SECONDS - 10)) ] || limit=$((seconds - SECONDS - 10))
	echo "== $name"
	timeout --signal=QUIT --kill-after=5 "$limit" "$@" >"$logs/$name.log" 2>&1
	code=$?
	[ "$code" = 0 ] || failed=1
	tail -n 25 "$logs/$name.log" | cut -c1-500
	verdicts+=("$(printf '%-14s exit %-3d %4d s' "$name" "$code" $((SECONDS - begin)))")
	printf '%s\n' "${verdicts[@]}" >"$logs/summary"
	tar -C "$logs" -czf "$out/gpu-logs.tgz" .
}

check() { # PART SECONDS
	part "$1" $(($2 + 15)) ./gpucheck "${small[@]}" -only "$1" -limit "$2s" -json "$logs/$1.json"
}

if [ -n "$interpreter" ]; then
	small=(-driver interpreter -small) place=cpu
	export GOPCCL_GPU=interpreter
else
	find_driver
	small=() place=cuda
	export GOPCCL_GPU=1
fi
export -f machine
export python interpreter
# The most telling ones come first, in case that time runs out.
part machine 40 bash -c machine
check hash 90
check calls 90
check reduce 120
part torch 240 "$python" parts/device_program.py "$place"
check lost 45
check sizes 150
check suites 180
check determinism 150
check aborts 150
part tests-kernels 180 parts/internal-cuda-kernels -test.short -test.v
part tests-cuda 180 parts/internal-cuda -test.short -test.v
part tests-device 120 parts/tests-device -test.short -test.v
part group 240 "$python" -m torch.distributed.run --standalone --nproc-per-node 2 parts/torch_program.py gopccl "$place"
if [ -z "$interpreter" ]; then
	part memcheck 120 compute-sanitizer --target-processes all --tool memcheck --error-exitcode 9 ./gpucheck -small -only hash,suites
	part racecheck 120 compute-sanitizer --target-processes all --tool racecheck --error-exitcode 9 ./gpucheck -small -only hash,suites
	part profile 120 ncu --target-processes all --clock-control none -k 'regex:hash_blocks|read_parity' -c 4 \
		--section SpeedOfLight --section Occupancy --section MemoryWorkloadAnalysis ./gpucheck -only hash
fi

echo "== in short"
[ ${#verdicts[@]} = 0 ] || printf '%s\n' "${verdicts[@]}"
[ ${#left_out[@]} = 0 ] || echo "no time was left for: ${left_out[*]}"
if [ ${#verdicts[@]} = 0 ] || [ ${#left_out[@]} -gt 0 ]; then failed=1; fi
echo "logs: $out/gpu-logs.tgz"
exit "$failed"
