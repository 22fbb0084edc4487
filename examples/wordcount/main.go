// SPDX-License-Identifier: Apache-2.0

// Command wordcount counts the words of files, as tr, sort and uniq -c do:
//
//	wordcount [-n N] FILE...
//
// A source reads the files, some stages divide their text into words, others count the words, each
// its own, and a sink sorts and prints the counts. The groups are read, split, count and print.
package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/rocl-go/rocl/dataflow"
)

func main() { dataflow.Main(build) }

// A count says how often a word came.
type count struct {
	Word string
	N    int
}

// build returns the graph.
func build(args []string) (*dataflow.Graph, error) {
	f := flag.NewFlagSet("wordcount", flag.ExitOnError)
	n := f.Int("n", 2, "stages that divide text, and stages that count")
	_ = f.Parse(args) // it ends the process
	read := dataflow.From(func(ctx context.Context, out dataflow.Out[[]byte]) error {
		return readAll(ctx, f.Args(), out)
	}, dataflow.Name("read"))
	split := make([]dataflow.Part[[]byte, string], *n)
	tally := make([]dataflow.Part[string, count], *n)
	for i := range *n {
		split[i] = dataflow.Do(dataflow.Func[[]byte, string](divide), dataflow.Name(fmt.Sprint("split", i)),
			dataflow.Batch(512, 0, 0), dataflow.Policy(dataflow.ByKey(key)))
		tally[i] = dataflow.Do(counter{}, dataflow.Name(fmt.Sprint("count", i)), dataflow.Batch(512, 0, 0))
	}
	print := dataflow.Do(&printer{}, dataflow.Name("print"))
	g, err := dataflow.New("wordcount", dataflow.Pipeline3(read, dataflow.AllToAll(split, tally), print))
	if err == nil {
		err = errors.Join(g.Group("read", read), g.Group("split", nodesOf(split)...), g.Group("count", nodesOf(tally)...), g.Group("print", print))
	}
	return g, err
}

func nodesOf[I, O any](ps []dataflow.Part[I, O]) (all []dataflow.Node) {
	for _, p := range ps {
		all = append(all, p)
	}
	return all
}

// readAll sends the text of files in pieces that end where a word ends.
func readAll(ctx context.Context, files []string, out dataflow.Out[[]byte]) error {
	for _, name := range files {
		f, err := os.Open(name)
		if err != nil {
			return err
		}
		err = read(ctx, bufio.NewReader(f), out)
		f.Close()
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return nil
}

func read(ctx context.Context, r *bufio.Reader, out dataflow.Out[[]byte]) error {
	for {
		piece := make([]byte, 32<<10)
		n, err := io.ReadFull(r, piece)
		piece = piece[:n]
		if err == nil {
			var rest []byte
			rest, err = r.ReadBytes('\n')
			piece = append(piece, rest...)
		}
		if len(piece) > 0 {
			if err := out.Send(ctx, piece); err != nil {
				return err
			}
		}
		if err == io.EOF || err == io.ErrUnexpectedEOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// divide sends the words of a piece of text: its longest sequences of letters and digits.
func divide(ctx context.Context, in dataflow.Item[[]byte], out dataflow.Out[string]) error {
	for word := range bytes.FieldsFuncSeq(in.Value, func(r rune) bool { return !isAlnum(r) }) {
		if err := out.Send(ctx, string(word)); err != nil {
			return err
		}
	}
	return nil
}

func isAlnum(r rune) bool {
	return '0' <= r && r <= '9' || 'a' <= r|0x20 && r|0x20 <= 'z'
}

// key is the same for a word in every process.
func key(word string) (h uint64) {
	for i := range len(word) {
		h = (h ^ uint64(word[i])) * 1099511628211 // FNV-1a
	}
	return h
}

// A counter counts the words that it is sent, and sends the counts in the end.
type counter map[string]int

// Process counts a word.
func (c counter) Process(_ context.Context, in dataflow.Item[string], _ dataflow.Out[count]) error {
	c[in.Value]++
	return nil
}

// Finish sends the counts.
func (c counter) Finish(ctx context.Context, out dataflow.Out[count]) error {
	for word, n := range c {
		if err := out.Send(ctx, count{word, n}); err != nil {
			return err
		}
	}
	return nil
}

// A printer prints the counts as uniq -c does.
type printer struct{ counts []count }

// Process notes a count.
func (p *printer) Process(_ context.Context, in dataflow.Item[count], _ dataflow.Out[dataflow.None]) error {
	p.counts = append(p.counts, in.Value)
	return nil
}

// Finish prints all counts.
func (p *printer) Finish(context.Context, dataflow.Out[dataflow.None]) error {
	slices.SortFunc(p.counts, func(a, b count) int { return strings.Compare(a.Word, b.Word) })
	w := bufio.NewWriter(os.Stdout)
	for _, c := range p.counts {
		fmt.Fprintf(w, "%7d %s\n", c.N, c.Word)
	}
	return w.Flush()
}
