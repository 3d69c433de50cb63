package core_test

import (
	"log"
	"os"
)

// scratch makes a folder, and done removes it.
func scratch() (dir string, done func()) {
	dir, err := os.MkdirTemp("", "gopccl")
	if err != nil {
		log.Fatal(err)
	}
	return dir, func() { os.RemoveAll(dir) }
}
