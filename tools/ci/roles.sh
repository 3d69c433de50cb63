#!/usr/bin/env bash
# Processor time by role of the data path, in percent of a core for each of two ranks that reduce 64 MiB in one process
# all the time. Printed as lines of Go benchmarks.
. "$(dirname "$0")/common.sh"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
go test -c -o "$work/test" ./internal/reduce
(cd internal/reduce && "$work/test" -test.run '^$' -test.bench 'Ring/n2/65536KiB/frame1024KiB/inplace=false' \
	-test.benchtime 3s -test.cpuprofile "$work/profile" >/dev/null)
# "Duration: 3.61s, Total samples = 5.92s", and the samples by label.
took=$(go tool pprof -top "$work/test" "$work/profile" 2>/dev/null | sed -n 's/^Duration: \([0-9.]*\)s.*/\1/p')
total=$(go tool pprof -top -unit s "$work/test" "$work/profile" 2>/dev/null | sed -n 's/.*Total samples = *\([0-9.]*\)s.*/\1/p')
go tool pprof -tags -unit s "$work/test" "$work/profile" 2>/dev/null | awk -v took="$took" -v total="$total" '
	/^ *gopccl:/ { on = 1; next }
	/^ *[a-z]+:/ { on = 0 }
	on && $NF ~ /^(reader|sender)$/ { printf "BenchmarkRole/%s\t1\t%.1f percent\n", $NF, 100 * $1 / took / 2; named += $1 }
	END { printf "BenchmarkRole/rest\t1\t%.1f percent\n", 100 * (total - named) / took / 2 }'
