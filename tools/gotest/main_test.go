package main

import (
	"slices"
	"strings"
	"testing"
)

func TestFilter(t *testing.T) {
	const events = `no event
{"Action":"output","Package":"github.com/gopccl/gopccl/core/x","Test":"TestGood","Output":"said by the good one\n"}
{"Action":"pass","Package":"github.com/gopccl/gopccl/core/x","Test":"TestGood"}
{"Action":"output","Package":"github.com/gopccl/gopccl/core/x","Test":"TestSkipped","Output":"=== RUN   TestSkipped\n"}
{"Action":"output","Package":"github.com/gopccl/gopccl/core/x","Test":"TestSkipped","Output":"    x_test.go:12: \n"}
{"Action":"output","Package":"github.com/gopccl/gopccl/core/x","Test":"TestSkipped","Output":"    * The library is missing. *\n"}
{"Action":"output","Package":"github.com/gopccl/gopccl/core/x","Test":"TestSkipped","Output":"    Run setup.sh.\n"}
{"Action":"output","Package":"github.com/gopccl/gopccl/core/x","Test":"TestSkipped","Output":"--- SKIP: TestSkipped (0.00s)\n"}
{"Action":"skip","Package":"github.com/gopccl/gopccl/core/x","Test":"TestSkipped"}
{"Action":"output","Package":"github.com/gopccl/gopccl/core/x","Test":"TestOther","Output":"    x_test.go:12: The library is missing. Run setup.sh.\n"}
{"Action":"skip","Package":"github.com/gopccl/gopccl/core/x","Test":"TestOther"}
{"Action":"output","Package":"github.com/gopccl/gopccl/core/x","Output":"PASS\n"}
{"Action":"output","Package":"github.com/gopccl/gopccl/core/x","Output":"ok  \tgithub.com/gopccl/gopccl/core/x\t0.1s\n"}
{"Action":"pass","Package":"github.com/gopccl/gopccl/core/x"}
{"Action":"skip","Package":"github.com/gopccl/gopccl/core/z"}
{"Action":"pass","Package":"core/v","Test":"TestShort","Elapsed":0.5}
{"Action":"pass","Package":"core/v","Test":"TestLong","Elapsed":70.4}
{"Action":"pass","Package":"core/v","Test":"TestLong/part","Elapsed":70}
{"Action":"pass","Package":"core/v","Elapsed":71}
{"Action":"output","Package":"core/y","Test":"TestBad","Output":"said by the bad one\n"}
{"Action":"fail","Package":"core/y","Test":"TestBad"}
{"Action":"output","Package":"core/y","Test":"TestCut","Output":"panic: in the middle\n"}
{"Action":"output","Package":"core/y","Output":"FAIL\tcore/y\t0.1s\n"}
{"Action":"fail","Package":"core/y"}
{"Action":"build-output","ImportPath":"core/w","Output":"undefined: x\n"}
`
	var out strings.Builder
	skipped := filter(strings.NewReader(events), &out)
	if want := "no event\nok  \tgithub.com/gopccl/gopccl/core/x\t0.1s\n    longest: TestLong 70 s, TestShort 0 s\nsaid by the bad one\nFAIL\tcore/y\t0.1s\npanic: in the middle\nundefined: x\n"; out.String() != want {
		t.Errorf("printed\n%s\nwant\n%s", out.String(), want)
	}
	if want := []string{"core/x: 2 tests, TestSkipped first: The library is missing. Run setup.sh."}; !slices.Equal(skipped, want) {
		t.Errorf("%q, want %q", skipped, want)
	}
}
