package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// What go vet finds for a system is found here, and nothing of other systems.
func TestPlantedFaults(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"go.mod":           "module planted\n\ngo 1.26\n",
		"a.go":             "package a\n\nimport \"net/http\"\n\nvar Client http.Client\n",
		"a_darwin.go":      "package a\n\nvar x int = \"text\"\n",
		"a_windows.go":     "package a\n\nimport \"sync\"\n\nfunc f(m sync.Mutex) { m.Lock() }\n",
		"a_freebsd.go":     "package a\n",
		"a_test.go":        "//go:build openbsd\n\npackage a\n\nimport \"testing\"\n\nfunc TestX(t *testing.T) { missing() }\n",
		"a_linux_arm64.go": "package a\n\nfunc add(a, b int64) int64\n",
		"a_linux_arm64.s":  "#include \"textflag.h\"\n\nTEXT ·add(SB), NOSPLIT, $0-16\n\tMOVD a+0(FP), R0\n\tRET\n",
		"tagged.go":        "//go:build extra\n\npackage a\n\nvar y = undefined\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct{ target, tags, want string }{
		{"freebsd/amd64", "", ""},
		{"linux/amd64", "", ""},
		{"freebsd/amd64", "extra", "undefined: undefined"},
		{"darwin/arm64", "", "cannot use \"text\""},
		{"windows/amd64", "", "passes lock by value"},
		{"linux/arm64", "", "wrong argument size"},
		{"openbsd/amd64", "", "undefined: missing"},
	} {
		found, err := check(dir, c.target, c.tags, "./...")
		if err != nil {
			t.Fatal(err)
		}
		all := strings.Join(found, "\n")
		if c.want == "" && all != "" || !strings.Contains(all, c.want) {
			t.Errorf("%s with tags %q: found %q, want %q", c.target, c.tags, all, c.want)
		}
	}
	if _, err := check(dir, "darwin", "", "./..."); err == nil {
		t.Error("a target without an architecture is accepted")
	}
}
