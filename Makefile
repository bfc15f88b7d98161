# The two commands: `make run` does the main job on this machine, `make test` runs every test.
GO ?= go

.PHONY: build
build:
	$(GO) build -o bin/ ./cmd/...
