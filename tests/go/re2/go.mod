module e2e.test/re2

go 1.26.0

require github.com/wasilibs/go-re2 v1.13.0

require golang.org/x/sys v0.48.0 // indirect
