// SPDX-License-Identifier: Apache-2.0

// Command sbom prints a software bill of materials of Go programs, in the JSON format of CycloneDX
// 1.5: their modules with versions and checksums, as the Go linker has recorded them. The same
// programs give the same bytes.
//
//	sbom VERSION FILE...
package main

import (
	"debug/buildinfo"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
)

// A component is a program or a module.
type component struct {
	Type    string `json:"type"`
	Ref     string `json:"bom-ref,omitempty"`
	Name    string `json:"name"`
	Version string `json:"version"`
	PURL    string `json:"purl,omitempty"`
	Hashes  []hash `json:"hashes,omitempty"`
}

type hash struct {
	Algorithm string `json:"alg"`
	Content   string `json:"content"`
}

type dependencies struct {
	Ref string   `json:"ref"`
	On  []string `json:"dependsOn"`
}

func main() {
	if len(os.Args) < 3 {
		fmt.Fprintln(os.Stderr, "usage: sbom VERSION FILE...")
		os.Exit(2)
	}
	if err := write(os.Stdout, os.Args[1], os.Args[2:]); err != nil {
		fmt.Fprintln(os.Stderr, "sbom:", err)
		os.Exit(1)
	}
}

// write writes the bill of materials of the programs in files, which are of one version.
func write(w io.Writer, version string, files []string) error {
	modules := map[string]component{}
	components, graph := []component{}, []dependencies{}
	for _, file := range files {
		info, err := buildinfo.ReadFile(file)
		if err != nil {
			return err
		}
		program := component{Type: "application", Name: filepath.Base(file), Version: version}
		program.Ref = program.Name
		needs := dependencies{Ref: program.Ref}
		for _, m := range append(info.Deps, &debug.Module{Path: "std", Version: info.GoVersion}) {
			c, err := module(m, version)
			if err != nil {
				return fmt.Errorf("%s: %w", file, err)
			}
			modules[c.Ref], needs.On = c, append(needs.On, c.Ref)
		}
		components, graph = append(components, program), append(graph, needs)
	}
	for _, c := range modules {
		components = append(components, c)
	}
	slices.SortFunc(components, func(a, b component) int { return strings.Compare(a.Ref, b.Ref) })
	out := json.NewEncoder(w)
	out.SetIndent("", " ")
	return out.Encode(map[string]any{
		"bomFormat": "CycloneDX", "specVersion": "1.5", "version": 1,
		"metadata":   map[string]any{"component": component{Type: "application", Name: "rocl", Version: version}},
		"components": components, "dependencies": graph,
	})
}

// module returns the component of a module. One of this repository has the version of the programs.
func module(m *debug.Module, version string) (component, error) {
	if m.Replace != nil {
		m = m.Replace
	}
	v := m.Version
	if v == "(devel)" || strings.HasPrefix(m.Path+"/", "github.com/rocl-go/rocl/") || strings.HasPrefix(m.Path, ".") {
		v = "v" + strings.TrimPrefix(version, "v")
	}
	c := component{Type: "library", Name: m.Path, Version: v, PURL: "pkg:golang/" + m.Path + "@" + v}
	c.Ref = c.PURL
	if sum, ok := strings.CutPrefix(m.Sum, "h1:"); ok {
		b, err := base64.StdEncoding.DecodeString(sum)
		if err != nil {
			return c, fmt.Errorf("the checksum of %s: %w", m.Path, err)
		}
		c.Hashes = []hash{{"SHA-256", hex.EncodeToString(b)}}
	}
	return c, nil
}
