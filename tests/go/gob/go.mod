module e2e.test/gob

go 1.24.9
