// The `openai` npm package against one base URL: prints what it got, as JSON.
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

const [baseURL, modules] = process.argv.slice(2);
const require = createRequire(pathToFileURL(`${modules}/`));
const OpenAI = require("openai").default ?? require("openai");
const client = new OpenAI({ baseURL, apiKey: "sk-mine", maxRetries: 0 });
const parameters = { type: "object", properties: { city: { type: "string" } } };
const tools = [{ type: "function", function: { name: "look_up", parameters } }];

const ask = (content, more = {}) =>
  client.chat.completions.create({
    model: "m",
    messages: Array.isArray(content) ? content : [{ role: "user", content }],
    ...more,
  });

async function toolLoop() {
  const messages = [{ role: "user", content: "what is the weather" }];
  const cities = [];
  for (let turn = 0; turn < 5; turn++) {
    const { message } = (await ask(messages, { tools })).choices[0];
    messages.push(message);
    if (!message.tool_calls) break;
    for (const call of message.tool_calls) {
      const { city } = JSON.parse(call.function.arguments);
      cities.push(city);
      messages.push({ role: "tool", tool_call_id: call.id, content: `${city}: 21` });
    }
  }
  return { cities, final: messages.at(-1).content };
}

async function streamed(content) {
  let text = "";
  for await (const chunk of await ask(content, { stream: true })) {
    text += chunk.choices[0]?.delta?.content ?? "";
  }
  return text;
}

async function structured() {
  const json_schema = { name: "w", schema: parameters };
  const made = await ask("weather", { response_format: { type: "json_schema", json_schema } });
  return JSON.parse(made.choices[0].message.content);
}

async function failure() {
  try {
    await ask("fail");
    return null;
  } catch (error) {
    return [error.constructor.name, error.status, error.headers.get("retry-after")];
  }
}

const report = { loop: await toolLoop() };
const calls = (await ask("two", { tools })).choices[0].message.tool_calls;
report.parallel = calls.map((call) => JSON.parse(call.function.arguments).city);
report.chat = (await ask("one two")).choices[0].message.content;
report.stream = await streamed("three four");
report.structured = await structured();
report.embedding = (await client.embeddings.create({ model: "e", input: "x" })).data[0].embedding.length;
report.failure = await failure();
console.log(JSON.stringify(report));
