// Command protogen writes the Go code of plugins/proto/plugin.proto. It needs
// no protoc: the file is compiled in this process, and protoc-gen-go and
// protoc-gen-go-grpc of the pinned tools turn it into Go.
//
//	go run -C tools ./protogen [-check]
package main

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/bufbuild/protocompile"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/pluginpb"
)

const source = "plugin.proto"

func main() {
	check := flag.Bool("check", false, "compare with the committed files instead of writing them")
	dir := flag.String("dir", "../plugins/proto", "directory of "+source)
	flag.Parse()
	if err := run(*dir, *check); err != nil {
		fmt.Fprintln(os.Stderr, "protogen:", err)
		os.Exit(1)
	}
}

func run(dir string, check bool) error {
	files, err := generate(dir)
	if err != nil {
		return err
	}
	for name, content := range files {
		path := filepath.Join(dir, name)
		if !check {
			if err := os.WriteFile(path, content, 0o644); err != nil {
				return err
			}
			continue
		}
		if old, err := os.ReadFile(path); err != nil || !bytes.Equal(old, content) {
			return fmt.Errorf("%s is not what %s gives; run 'go run -C tools ./protogen'", path, source)
		}
	}
	return nil
}

// generate returns the generated files by name.
func generate(dir string) (map[string][]byte, error) {
	compiler := protocompile.Compiler{
		Resolver:       &protocompile.SourceResolver{ImportPaths: []string{dir}},
		SourceInfoMode: protocompile.SourceInfoStandard, // comments of the source go to the Go code
	}
	compiled, err := compiler.Compile(context.Background(), source)
	if err != nil {
		return nil, err
	}
	request, err := proto.Marshal(&pluginpb.CodeGeneratorRequest{
		FileToGenerate: []string{source},
		Parameter:      proto.String("paths=source_relative"),
		ProtoFile:      []*descriptorpb.FileDescriptorProto{protodesc.ToFileDescriptorProto(compiled[0])},
	})
	if err != nil {
		return nil, err
	}
	files := map[string][]byte{}
	for _, generator := range []string{"protoc-gen-go", "protoc-gen-go-grpc"} {
		var out bytes.Buffer
		cmd := exec.Command("go", "tool", generator)
		cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(request), &out, os.Stderr
		if err := cmd.Run(); err != nil {
			return nil, fmt.Errorf("%s: %w", generator, err)
		}
		var response pluginpb.CodeGeneratorResponse
		if err := proto.Unmarshal(out.Bytes(), &response); err != nil {
			return nil, fmt.Errorf("%s: %w", generator, err)
		}
		if response.Error != nil {
			return nil, fmt.Errorf("%s: %s", generator, response.GetError())
		}
		for _, f := range response.File {
			files[f.GetName()] = []byte(f.GetContent())
		}
	}
	return files, nil
}
