package differential

import (
	"fmt"
	"math/rand"
	"strings"
	"unicode"
)

// fixed returns patterns at the borders of the grammar.
func fixed() []string {
	deep := func(open, inner, end string, depth int) string {
		return strings.Repeat(open, depth) + inner + strings.Repeat(end, depth)
	}
	patterns := []string{
		deep("(", "", ")", 1001), deep("(", "a", ")", 50_000), deep("(?:", "a", ")*", 2000), deep("(a|", "b", ")", 2000),
		deep("(", "a", "", 50_000), deep("[", "a", "]", 50_000), deep("a{1,", "1", "}", 2000), deep("(?:", "a{1000}", "){1}", 50),
	}
	return append(patterns, strings.Split(strings.TrimSpace(borders), "\n")...)
}

const borders = `
\pQ
\p{Xx}
\p{}
\p{^}
\p{^Greek}
\P{^L}
\p^L
\p
\pL
\p{L
\p{ L}
\p{greek}
\p{Letter}
\p{Script=Greek}
\pé
[\p]
[\pL]
[\p{L]
[\p{Greek}-z]
[\pL\PL]
[\w-.]
[\w--a]
[\w-a-z]
[a-\d]
[\d-z]
[a&&b]
[a--]
[--a]
[a--b]
[a~~b]
[a-]
[-a]
[-]
[a-c-e]
[a-c-]
[z-a]
[a-a]
[]
[^]
[]]
[^]]
[]-a]
[a-]]
[\]
[\]]
[[]
[[]]
[[a]]
[a[b]]
[[:alpha:
[[:alpha:]
[[:alpha:]]
[[:^alpha:]]
[^[:^word:]_]
[[:ALPHA:]]
[[:x
[[:]
[[::]]
[:alpha:]
[a[:x]:]]
[a-[:alpha:]]
[[:alpha:]-z]
[[=a=]]
[[.a.]]
[\b]
[\B]
[\A]
[\z]
[\Q]
[\C]
[\n\t\r\a\f\v\x41\x{1F600}\101\-\^]
[\x{61}-\x{7A}]
[é-ü]
[a-\
(?ii)
(?i-i)
(?i-ii)
(?-i-s)
(?-)
(?i-)
(?i-:a)
(?)
(?:)
(?imsU-imsU:a)
(?x)a
(?u)a
(?R)
(?i
(?
(?:
(?P
(?P<
(?P<n
(?P<n>
(?P<n>)
(?P<>a)
(?P<1>a)
(?P<a_B9>a)
(?P<a-b>a)
(?P<é>a)
(?P<n>a)(?P<n>b)
(?P=n)
(?P>n)
(?<n>a)
(?<n
(?<
(?<>a)
(?<=a)
(?<!a)
(?=a)
(?!a)
(?>a)
(?#a)
(?'n'a)
(?|a)
(?1)
(a
a)
(a))
()
(|)
|
||
a|*
(|*)
(*)
*
+a
?
^*
$+
\b+
\B?
\A{2}
\z*
a**
a*?
a*??
a+?*
a{2}*
a{2}?
a{2}??
a{2}{3}
a?{2}
a*|b**
a*(?i)*
(?i)*
(?i){2}
a*\Q\E*
\Q\E*
\Q*+?\E*
\Q
\Qa
\Qa\
\Q\
\Qa\E\E
\E
a{x}
a{
a{}
a{,}
a{,3}
a{1
a{1,
a{1,2
a{ 1}
a{1 }
a{01}
a{00}
a{0}
a{0,0}
a{2,1}
a{+1}
{
}
{2}
{x}
]
a{1000}
a{1001}
a{1000,}
a{1001,}
a{0,1001}
a{99999999}
a{100000000}
a{999999999}
a{1000000000}
a{10000000000}
a{99999999999999999999999999999999}
(a{10}){100}
(a{11}){100}
((a{50}){30}b)
((a{2,}){501})
((a{2,}){500})
(a{0}){1000}
((a{0}){1000}){2}
((a{1000}){0}){1000}
((a{1000}){0})
(((x{7}){11}){13})
(((x{7}){11}){12})
(a{500}|b{1000}){2}
(a{500}b{500}){2}
(?:a{500}*){2}
((a{500})*){2}
((a{501})?){2}
\
a\
\_
\-
\/
\#
\ 
\~
\é
\1
\7
\8
\9
\0
\00
\01
\08
\10
\19
\12
\123
\377
\400
\777
\1234
\x
\x1
\x12
\x{}
\x{1
\x{1}
\x{10FFFF}
\x{110000}
\x{00000000041}
\x{D800}
\x{g}
\x{ 1}
\xg0
\x0g
\a\f\n\r\t\v
\c
\cA
\e
\g
\h
\k
\u0041
\U00000041
\y
\C
\C*
\G
\K
\N
\R
\X
\Z
\<a
\>
\b{start}
(?i)chrome/(\d+)\.\d*?
^v[0-9]+(?:\.[0-9]+)*$
(.*; *)?beta=1(;.*)?
^/api/v[0-9]+/[\w-.]+$
^[\w.+-]+@[\w-]+\.[\w.-]+$
`

// names returns a class for each name that Unicode gives to a category, script or property, and for names that look like them.
func names() []string {
	var patterns []string
	add := func(name string) {
		for _, name := range []string{name, strings.ToLower(name), strings.ReplaceAll(name, "_", " "), name + "x"} {
			patterns = append(patterns, `\p{`+name+`}`, `[\P{^`+name+`}]`)
		}
	}
	for _, tables := range []map[string]*unicode.RangeTable{unicode.Categories, unicode.Scripts, unicode.Properties} {
		for name := range tables {
			add(name)
		}
	}
	for name := range unicode.CategoryAliases {
		add(name)
	}
	for _, name := range []string{
		"Any", "ASCII", "Assigned", "L&", "Unknown", "Zzzz", "Katakana_Or_Hiragana", "Grek", "Latn", "Garay", "Todhri", "Sunuwar",
		"Gurung_Khema", "Kirat_Rai", "Ol_Onal", "Tulu_Tigalari", "Sidetic", "Beria_Erfe", "Tai_Yo", "Tolong_Siki",
	} {
		add(name)
	}
	for letter := 'A'; letter <= 'z'; letter++ {
		patterns = append(patterns, fmt.Sprintf(`\p%c`, letter), fmt.Sprintf(`\%c`, letter), fmt.Sprintf(`[\%c]`, letter))
		for second := 'A'; second <= 'z'; second++ {
			patterns = append(patterns, fmt.Sprintf(`\p{%c%c}`, letter, second))
		}
	}
	return patterns
}

// generator makes patterns of RE2's grammar, and mutates half of them.
type generator struct{ *rand.Rand }

func (g generator) pattern() string {
	pattern := g.alternation(3)
	if g.Intn(2) == 0 {
		return pattern
	}
	for range 1 + g.Intn(3) {
		pattern = g.mutate(pattern)
	}
	return pattern
}

func (g generator) of(texts ...string) string { return texts[g.Intn(len(texts))] }

func (g generator) alternation(depth int) string {
	parts := make([]string, 1+g.Intn(3)/2)
	for index := range parts {
		for range g.Intn(4) {
			parts[index] += g.repeated(depth)
		}
	}
	return strings.Join(parts, "|")
}

func (g generator) repeated(depth int) string {
	atom := g.atom(depth)
	if g.Intn(3) > 0 {
		return atom
	}
	return atom + g.of("*", "+", "?", g.count(), g.count()) + g.of("", "", "?")
}

func (g generator) count() string {
	number := func() string { return g.of("0", "1", "2", "3", "7", "10", "30", "99", "100") }
	switch g.Intn(10) {
	case 0, 1, 2, 3:
		return "{" + number() + "}"
	case 4, 5:
		return "{" + number() + ",}"
	case 6, 7:
		return fmt.Sprintf("{%d,%d}", g.Intn(5), 4+g.Intn(20))
	case 8:
		return "{" + g.of("500", "999", "1000", "1001", "99999999", "1000000000", "00", "01") + "}"
	default:
		return g.of("{", "{,}", "{,2}", "{2", "{2,", "{2,1}", "{x}", "{}", "{1,2,3}", "{-1}", "{ 2}")
	}
}

func (g generator) atom(depth int) string {
	if depth > 0 && g.Intn(3) == 0 {
		open := g.of("(", "(", "(?:", "(?P<name>", "(?<n1>", g.flags(":"))
		return open + g.alternation(depth-1) + ")"
	}
	switch g.Intn(8) {
	case 0:
		return g.class()
	case 1:
		return g.escape()
	case 2:
		return g.of(".", "^", "$", `\b`, `\B`, `\A`, `\z`, `\Z`, `\C`, `\d`, `\W`, `\s`, `\S`, `\D`, `\w`)
	case 3:
		return g.of(`\Q`+g.literal()+g.literal()+`\E`, g.unicode(), g.flags(")"))
	default:
		return g.literal()
	}
}

func (g generator) literal() string {
	return g.of("a", "b", "Z", "0", "9", "_", "-", ",", ":", "/", "=", "é", "日", "\U0001F600", "]", "}", "&", "~", "#", " ", "<", ">", "\x00")
}

func (g generator) flags(end string) string {
	flags := func() string {
		text := ""
		for range g.Intn(3) {
			text += g.of("i", "m", "s", "U", "U", "i", "x", "u")
		}
		return text
	}
	return "(?" + flags() + g.of("", "", "-"+flags(), "-i-") + end
}

func (g generator) escape() string {
	switch g.Intn(5) {
	case 0:
		return `\x` + g.of("41", "{1F600}", "{0}", "{}", "{110000}", "4", "{D800}", "{41", "g0", "{0000000000041}")
	case 1:
		return fmt.Sprintf(`\%o`, g.Intn(1024))
	case 2:
		return `\` + string(rune(g.Intn(128)))
	default:
		return `\` + g.of(".", "-", "/", "[", "]", "(", ")", "{", "}", "*", "+", "?", "|", "^", "$", `\`, "n", "t", "r", "f", "v", "a", "e", "8")
	}
}

func (g generator) unicode() string {
	return `\` + g.of("p", "P") + g.of("L", "N", "{Lu}", "{^Nd}", "{Greek}", "{Han}", "{Any}", "{^Any}", "{Old_Italic}", "{Common}",
		"{Letter}", "{greek}", "{Cn}", "{Xx}", "{}", "{^}", "Q", "{L", "{White_Space}", "^L", "")
}

func (g generator) class() string {
	text := "[" + g.of("", "", "^")
	for range 1 + g.Intn(4) {
		switch g.Intn(10) {
		case 0:
			text += "[:" + g.of("alpha", "^alnum", "word", "digit", "xdigit", "ascii", "blank", "cntrl", "graph", "lower", "print", "punct",
				"space", "upper", "Alpha", "", "^") + g.of(":]", ":]", ":]", "]", ":")
		case 1:
			text += g.of("&&", "--", "~~", "||", "[", "]", "-", "^", "{2}", "[a]", "&&[b]")
		case 2:
			text += g.unicode()
		case 3:
			text += g.of(`\d`, `\w`, `\S`, `\b`, `\Q`, `\E`, `\A`, `\z`, `\C`)
		case 4:
			text += g.escape()
		case 5, 6:
			text += g.of("a-z", "0-9", "A-", "z-a", "-z", g.literal()+"-"+g.literal(), g.escape()+"-"+g.escape(), `\w-`, `a-\d`)
		default:
			text += g.literal()
		}
	}
	return text + "]"
}

// mutate deletes, doubles, swaps or inserts characters, or keeps only a part.
func (g generator) mutate(pattern string) string {
	runes := []rune(pattern)
	if len(runes) == 0 {
		return g.of("*", "(", ")", "[", `\`, "|", "{2}")
	}
	at := g.Intn(len(runes))
	left, right := string(runes[:at]), string(runes[at+1:])
	switch g.Intn(6) {
	case 0:
		return left + right
	case 1:
		return left + string(runes[at]) + string(runes[at]) + right
	case 2:
		return left + string(runes[g.Intn(len(runes))]) + right
	case 3:
		return string(runes[at:]) + left
	case 4:
		return left
	default:
		return left + g.of("*", "+", "?", "|", "(", ")", "[", "]", "{", "}", "{2}", "{1,}", `\`, "-", "^", "$", ".", "(?", "(?:", ":", ",", "0", "1",
			"a", "x", "p", "Q", "E", "&&", "[:", ":]", "é") + string(runes[at]) + right
	}
}
