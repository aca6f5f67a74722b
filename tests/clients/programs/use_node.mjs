// The OpenAI, Anthropic and Ollama clients for Node, as they come. Prints what they saw as JSON.
import OpenAI from "openai";
import Anthropic from "@anthropic-ai/sdk";
import { Ollama } from "ollama";

const url = process.argv[2];
const messages = [{ role: "user", content: "Tell me about the sea." }];

if (process.argv[3] === "embed") {
  const client = new Ollama({ host: url });
  const many = await client.embed({ model: "tiny", input: ["the sea", "a lake"] });
  const old = await client.embeddings({ model: "tiny", prompt: "the sea" });
  console.log(JSON.stringify({ many: many.embeddings, tokens: many.prompt_eval_count, old: old.embedding }));
  process.exit();
}

if (process.argv[3] === "broken") {
  const of_openai = new OpenAI({ baseURL: url + "/v1", apiKey: "sk-any", maxRetries: 0 });
  const of_anthropic = new Anthropic({ baseURL: url, apiKey: "sk-any", maxRetries: 0 });
  const of_ollama = new Ollama({ host: url });
  const raised = async (ask) => {
    try {
      for await (const _ of await ask());
    } catch (error) {
      return error;
    }
  };
  const stream = true;
  const chat = await raised(() => of_openai.chat.completions.create({ model: "tiny", messages, stream }));
  const text = await raised(() => of_openai.completions.create({ model: "tiny", prompt: "The sea", stream }));
  const response = await raised(() => of_openai.responses.create({ model: "tiny", input: "The sea", stream }));
  const helped = await raised(() => of_openai.responses.stream({ model: "tiny", input: "The sea" }));
  const told = (await raised(() => of_anthropic.messages.create({ model: "tiny", max_tokens: 8, messages, stream })))
    .error.error;
  const line = await raised(() => of_ollama.chat({ model: "tiny", messages, stream }));
  console.log(JSON.stringify({
    chat: [chat.code, chat.message],
    completions: [text.code, text.message],
    responses: [response.code, response.message],
    "responses with help": [helped.code, helped.message],
    messages: [told.code, told.message],
    ollama: ["upstream_error", line.message],
  }));
  process.exit();
}

const openai = new OpenAI({ baseURL: url + "/v1", apiKey: "sk-any", maxRetries: 0 });
const answer = await openai.chat.completions.create({ model: "tiny", messages, max_tokens: 8 });
let pieces = 0;
const stream = await openai.chat.completions.create({ model: "tiny", messages, max_tokens: 8, stream: true });
for await (const chunk of stream) pieces += chunk.choices[0]?.delta?.content ? 1 : 0;
let long = "";
try {
  await openai.chat.completions.create({ model: "tiny", messages: [{ role: "user", content: "a ".repeat(20000) }] });
} catch (error) {
  long = error.code;
}

const anthropic = new Anthropic({ baseURL: url, apiKey: "sk-any", maxRetries: 0 });
const message = await anthropic.messages.create({ model: "tiny", messages, max_tokens: 8 });
const last = await anthropic.messages.stream({ model: "tiny", messages, max_tokens: 8 }).finalMessage();
let tooLong = "";
try {
  await anthropic.messages.create({ model: "tiny", max_tokens: 8, messages: [{ role: "user", content: "sea ".repeat(9000) }] });
} catch (error) {
  tooLong = error.error.error.code;
}

const ollama = new Ollama({ host: url });
const options = { num_predict: 8 };
const said = await ollama.chat({ model: "tiny", messages, options });
let end;
for await (const part of await ollama.chat({ model: "tiny", messages, options, stream: true })) end = part;
let refused = 0;
try {
  await ollama.generate({ model: "tiny", prompt: "sea ".repeat(9000) });
} catch (error) {
  refused = error.status_code;
}
const names = (await ollama.list()).models.map((one) => one.name);
console.log(JSON.stringify({
  openai: { output: answer.usage.completion_tokens, pieces, long },
  anthropic: { output: message.usage.output_tokens, stream: last.usage.output_tokens, long: tooLong },
  ollama: { output: said.eval_count, stream: end.eval_count, refused, names },
}));
