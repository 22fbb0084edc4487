// SPDX-License-Identifier: Apache-2.0

package words

import (
	"fmt"
	"go/ast"
	"go/token"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// tellsOperators lists the folders whose log lines docs/TROUBLESHOOTING.md explains.
var tellsOperators = []string{"cmd/dirserver", "context", "directory", "dispatch", "subsys", "internal/logqueue", "directory/internal/index", "directory/internal/database", "directory/internal/mux", "directory/internal/search"}

// Every message that docs/TROUBLESHOOTING.md explains is in the code, and the page explains every
// log line at level info or above.
func TestDocMessages(t *testing.T) {
	explained := messagesOf(read(t, "docs/TROUBLESHOOTING.md"))
	if len(explained) < 100 {
		t.Errorf("the page explains %d messages", len(explained))
	}
	var literals strings.Builder
	logged := map[string]string{} // the position of each message
	for _, path := range files(t, ".go") {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		file, fset := parse(t, path)
		ast.Inspect(file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.BasicLit:
				if s, err := strconv.Unquote(n.Value); err == nil && n.Kind == token.STRING {
					literals.WriteString(s + "\n")
				}
			case *ast.CallExpr:
				if s := logMessage(n); s != "" && tells(path) {
					logged[s] = fmt.Sprintf("%s:%d", path, fset.Position(n.Pos()).Line)
				}
			}
			return true
		})
	}
	for _, m := range explained {
		for part := range strings.SplitSeq(m, "…") {
			if part = strings.TrimSpace(part); !kernelSays(m) && !strings.Contains(literals.String(), part) {
				t.Errorf("docs/TROUBLESHOOTING.md explains %q, but %q is not in the code", m, part)
			}
		}
	}
	if len(logged) < 50 {
		t.Errorf("%d log lines are found", len(logged))
	}
	for m, place := range logged {
		if !slices.Contains(explained, m) {
			t.Errorf("%s: docs/TROUBLESHOOTING.md does not explain %q", place, m)
		}
	}
}

// docs/TROUBLESHOOTING.md names each error of package rocl.
func TestDocErrors(t *testing.T) {
	page := read(t, "docs/TROUBLESHOOTING.md")
	names := regexp.MustCompile(`(?m)^\t(Err\w+) +=`).FindAllStringSubmatch(read(t, "rocl.go"), -1)
	if len(names) < 40 {
		t.Errorf("package rocl has %d errors", len(names))
	}
	for _, name := range names {
		if !strings.Contains(page, "| `"+name[1]+"` |") {
			t.Errorf("docs/TROUBLESHOOTING.md does not explain rocl.%s", name[1])
		}
	}
}

// messagesOf returns the messages of the tables whose first column is "message".
func messagesOf(page string) (all []string) {
	span := regexp.MustCompile("`([^`]+)`")
	inTable := false
	for line := range strings.Lines(page) {
		switch {
		case strings.HasPrefix(line, "| message |"):
			inTable = true
		case !strings.HasPrefix(line, "|"):
			inTable = false
		case inTable:
			first, _, _ := strings.Cut(strings.TrimPrefix(line, "|"), "|")
			for _, m := range span.FindAllStringSubmatch(first, -1) {
				all = append(all, m[1])
			}
		}
	}
	return all
}

// kernelSays reports whether the kernel, not the library, is the source of a message.
func kernelSays(m string) bool { return strings.HasPrefix(m, "bind: ") }

// tells reports whether the log lines of a file are for operators.
func tells(path string) bool {
	return !strings.Contains(path, "subsystest") && slices.ContainsFunc(tellsOperators, func(dir string) bool {
		return strings.HasPrefix(path, dir+"/")
	})
}

// logMessage returns the text of a call that logs at level info or above, and "" for any other
// call.
func logMessage(call *ast.CallExpr) string {
	sel, ok := call.Fun.(*ast.SelectorExpr)
	if !ok || !slices.Contains([]string{"Info", "Warn", "Error"}, sel.Sel.Name) {
		return ""
	}
	if x, ok := sel.X.(*ast.Ident); ok && (x.Name == "http" || x.Name == "t") {
		return ""
	}
	for _, arg := range call.Args[:min(2, len(call.Args))] { // a limited line names its source first
		if lit, ok := arg.(*ast.BasicLit); ok && lit.Kind == token.STRING {
			if s, err := strconv.Unquote(lit.Value); err == nil && s != "" {
				return s
			}
		}
	}
	return ""
}
