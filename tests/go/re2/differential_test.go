// Package differential compares the patterns that the plugin accepts with those that RE2 accepts, with which Envoy matches.
package differential

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand"
	"os"
	"os/exec"
	"regexp/syntax"
	"runtime"
	"strings"
	"testing"
	"unicode"

	"github.com/wasilibs/go-re2"
)

// patterns is the number of generated patterns, and shown the number of differences that a failing test prints.
const (
	patterns = 200_000
	shown    = 60
)

// The plugin accepts a pattern exactly if RE2 does. Go's own parser is a second opinion: where it differs from RE2, the reason is
// known.
func TestPatternsAreAcceptedAsByRE2(t *testing.T) {
	silence(t)
	tested := append(fixed(), names()...)
	numbers := generator{rand.New(rand.NewSource(1))}
	for range patterns {
		tested = append(tested, numbers.pattern())
	}
	accepted, judged := 0, map[string]int{}
	tooMuch, tooLittle := 0, 0
	var wrong []string
	for at, problem := range problems(t, tested) {
		pattern := tested[at]
		verdict := judge(pattern)
		if verdict == nil {
			accepted++
		}
		if (verdict == nil) != (problem == "") && !isLeftOut(pattern, verdict) {
			wrong = append(wrong, fmt.Sprintf("%.80q: RE2 says %v, we say %q", pattern, verdict, problem))
			if verdict == nil {
				tooLittle++
			} else {
				tooMuch++
			}
		}
		if reason := secondOpinion(pattern, verdict); reason != "" {
			judged[reason]++
			if reason == unexplained {
				wrong = append(wrong, fmt.Sprintf("%.80q: RE2 says %v, Go differs for an unknown reason", pattern, verdict))
			}
		}
		if at%10_000 == 0 {
			// RE2's memory is released by finalizers.
			runtime.GC()
		}
	}
	for _, difference := range wrong[:min(len(wrong), shown)] {
		t.Error(difference)
	}
	if len(wrong) > 0 {
		t.Errorf("%d differences: we accept %d patterns that RE2 refuses, and refuse %d that it accepts", len(wrong), tooMuch, tooLittle)
	}
	fmt.Printf("figure: %d patterns, of which RE2 accepts %d; Go differs from RE2: %v\n", len(tested), accepted, judged)
	if accepted < len(tested)/5 || accepted > len(tested)*4/5 {
		t.Errorf("a generator that makes mostly patterns of one kind finds little")
	}
}

// judge returns why RE2 does not accept a pattern. A program that is too large is not a matter of syntax.
func judge(pattern string) error {
	_, err := re2.Compile(pattern)
	if err != nil && strings.HasSuffix(err.Error(), "expression too large") {
		return nil
	}
	return err
}

// isLeftOut returns whether we refuse on purpose what RE2 accepts: names of groups beyond ASCII, which RE2 accepts since 2023 if
// their characters are in some of its tables.
func isLeftOut(pattern string, verdict error) bool {
	_, err := syntax.Parse(pattern, syntax.Perl)
	var problem *syntax.Error
	return verdict == nil && errors.As(err, &problem) && problem.Code == syntax.ErrInvalidNamedCapture &&
		strings.IndexFunc(problem.Expr, func(r rune) bool { return r > unicode.MaxASCII }) >= 0
}

const unexplained = "unexplained"

// secondOpinion returns why Go differs from RE2; nothing if it does not.
func secondOpinion(pattern string, verdict error) string {
	_, err := syntax.Parse(pattern, syntax.Perl)
	var problem *syntax.Error
	switch {
	case (verdict == nil) == (err == nil):
		return ""
	case verdict == nil && errors.As(err, &problem):
		switch problem.Code {
		case syntax.ErrInvalidEscape:
			if strings.Contains(problem.Expr, `\C`) {
				return `\C`
			}
		case syntax.ErrInvalidNamedCapture:
			return "a name beyond ASCII"
		case syntax.ErrInvalidRepeatSize:
			return "a count of ten digits, which RE2 reads as text"
		case syntax.ErrInvalidCharRange:
			// Go compares names without underscores, and then does not find some names that have one.
			if strings.HasPrefix(problem.Expr, `\p{`) || strings.HasPrefix(problem.Expr, `\P{`) {
				return "a Unicode name that only RE2 knows"
			}
		case syntax.ErrNestingDepth, syntax.ErrLarge:
			return "Go's own limits"
		}
	case strings.Contains(verdict.Error(), `\p`) || strings.Contains(verdict.Error(), `\P`):
		return "a Unicode name that only Go knows"
	case strings.Contains(verdict.Error(), "bad repitition argument") && strings.Contains(pattern, "{0"):
		return "a repetition inside {0}, which Go does not count"
	}
	return unexplained
}

// problems returns what the plugin says about each pattern: why it refuses it, or nothing.
func problems(t *testing.T, patterns []string) []string {
	t.Helper()
	var lines strings.Builder
	for _, pattern := range patterns {
		line, err := json.Marshal(pattern)
		if err != nil {
			t.Fatal(err)
		}
		lines.Write(append(line, '\n'))
	}
	process := exec.Command(os.Getenv("PATTERNS"))
	process.Stdin = strings.NewReader(lines.String())
	process.Stderr = os.Stderr
	output, err := process.Output()
	if err != nil {
		t.Fatalf("PATTERNS must be the path of route-planner's example patterns: %v", err)
	}
	answers := make([]string, 0, len(patterns))
	for scanner := bufio.NewScanner(strings.NewReader(string(output))); scanner.Scan(); {
		var answer string
		if err := json.Unmarshal(scanner.Bytes(), &answer); err != nil {
			t.Fatal(err)
		}
		answers = append(answers, answer)
	}
	if len(answers) != len(patterns) {
		t.Fatalf("%d answers to %d patterns", len(answers), len(patterns))
	}
	return answers
}

// silence drops the log lines that RE2 writes for each pattern that it refuses. RE2 starts with its first pattern, and keeps the
// file that is os.Stderr then.
func silence(t *testing.T) {
	t.Helper()
	null, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	stderr := os.Stderr
	os.Stderr = null
	defer func() { os.Stderr = stderr }()
	re2.MustCompile("a")
}
