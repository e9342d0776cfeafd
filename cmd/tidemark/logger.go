package main

import (
	"io"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/tidemark-db/tidemark/config"
)

// newLogger writes log lines to w as c says. Every line is written before the call
// returns, so that nothing is lost when the process ends.
func newLogger(c *config.Config, w io.Writer) *zap.Logger {
	level := zapcore.InfoLevel
	// Validate allows nothing but zap's own words.
	_ = level.Set(c.LogLevel)
	fields := zapcore.EncoderConfig{
		TimeKey: "time", LevelKey: "level", NameKey: "logger", MessageKey: "message",
		EncodeTime:     zapcore.RFC3339NanoTimeEncoder,
		EncodeLevel:    zapcore.LowercaseLevelEncoder,
		EncodeDuration: zapcore.StringDurationEncoder,
	}
	encoder := zapcore.NewJSONEncoder(fields)
	if c.LogFormat == "console" {
		fields.EncodeTime = zapcore.TimeEncoderOfLayout("2006-01-02T15:04:05.000Z0700")
		fields.EncodeLevel = zapcore.CapitalLevelEncoder
		fields.ConsoleSeparator = "  "
		encoder = zapcore.NewConsoleEncoder(fields)
	}
	return zap.New(zapcore.NewCore(encoder, zapcore.Lock(zapcore.AddSync(w)), level))
}
